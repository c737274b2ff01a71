import Foundation

/// A JSON value.
public enum JSON: Codable, Equatable, Sendable {
    case null
    case bool(Bool)
    case integer(Int)
    case number(Double)
    case string(String)
    case array([JSON])
    case object([String: JSON])

    public init(from decoder: Decoder) throws {
        let value = try decoder.singleValueContainer()
        if value.decodeNil() {
            self = .null
        } else if let bool = try? value.decode(Bool.self) {
            self = .bool(bool)
        } else if let integer = try? value.decode(Int.self) {
            self = .integer(integer)
        } else if let number = try? value.decode(Double.self) {
            self = .number(number)
        } else if let string = try? value.decode(String.self) {
            self = .string(string)
        } else if let array = try? value.decode([JSON].self) {
            self = .array(array)
        } else {
            self = .object(try value.decode([String: JSON].self))
        }
    }

    public func encode(to encoder: Encoder) throws {
        var value = encoder.singleValueContainer()
        switch self {
        case .null: try value.encodeNil()
        case .bool(let bool): try value.encode(bool)
        case .integer(let integer): try value.encode(integer)
        case .number(let number): try value.encode(number)
        case .string(let string): try value.encode(string)
        case .array(let array): try value.encode(array)
        case .object(let object): try value.encode(object)
        }
    }

    public init(parsing text: String) throws {
        self = try JSONDecoder().decode(JSON.self, from: Data(text.utf8))
    }

    public var text: String? {
        if case .string(let string) = self { return string }
        return nil
    }

    public var integer: Int? {
        if case .integer(let integer) = self { return integer }
        return nil
    }

    public var object: [String: JSON]? {
        if case .object(let object) = self { return object }
        return nil
    }

    public var texts: [String] {
        if case .array(let array) = self { return array.compactMap(\.text) }
        return []
    }
}

extension JSON: ExpressibleByStringLiteral, ExpressibleByBooleanLiteral, ExpressibleByIntegerLiteral {
    public init(stringLiteral value: String) { self = .string(value) }
    public init(booleanLiteral value: Bool) { self = .bool(value) }
    public init(integerLiteral value: Int) { self = .integer(value) }
}

extension JSON: ExpressibleByArrayLiteral, ExpressibleByDictionaryLiteral {
    public init(arrayLiteral elements: JSON...) { self = .array(elements) }
    public init(dictionaryLiteral elements: (String, JSON)...) {
        self = .object(Dictionary(elements, uniquingKeysWith: { _, last in last }))
    }
}

typealias Payload = [String: JSON]

extension Payload {
    func text(_ name: String) -> String { self[name]?.text ?? "" }
    func texts(_ name: String) -> [String] { self[name]?.texts ?? [] }

    /// Without the fields that are nil.
    static func fields(_ fields: [String: JSON?]) -> Payload { fields.compactMapValues { $0 } }
}

func encoded(_ value: some Encodable) -> String {
    (try? JSONEncoder().encode(value)).map { String(decoding: $0, as: UTF8.self) } ?? "null"
}

/// Values by id, in order; the oldest go.
struct Recent<Value> {
    let limit: Int
    private(set) var ids: [String] = []
    private var values: [String: Value] = [:]

    init(limit: Int) { self.limit = limit }

    subscript(id: String) -> Value? {
        get { values[id] }
        set {
            if values.updateValue(newValue!, forKey: id) == nil { ids.append(id) }
            if ids.count > limit { values[ids.removeFirst()] = nil }
        }
    }
}

/// A value that comes once; later ones are dropped.
@MainActor final class Once<Value: Sendable> {
    private var value: Value?
    private var waiting: [CheckedContinuation<Value, Never>] = []

    func settle(_ settled: Value) {
        guard value == nil else { return }
        value = settled
        waiting.forEach { $0.resume(returning: settled) }
        waiting = []
    }

    func wait() async -> Value {
        if let value { return value }
        return await withCheckedContinuation { waiting.append($0) }
    }
}

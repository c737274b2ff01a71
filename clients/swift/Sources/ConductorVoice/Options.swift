import Foundation
#if canImport(FoundationNetworking)
import FoundationNetworking
#endif

/// The address, the device's abilities, and the app's callbacks. All hooks and handlers run on the main actor.
public struct Options {
    /// `wss://HOST/ws`
    public var url: URL
    public var token: String?
    /// The same id resumes a session.
    public var sessionId = "swift-\(UUID().uuidString)"
    public var model: String?
    public var locale = Locale.preferredLanguages.first
    /// The person's language (BCP 47), in which questions are spoken. Default: the locale's.
    public var lang: String?
    public var timeZone = TimeZone.current.identifier
    /// Added to the system prompt; at most 4 KiB.
    public var instructions: String?
    /// The values of all `{{name}}` in the server's system prompt, each of at most 200 characters.
    public var variables: [String: String]?
    /// Spoken first in a new session, without the model.
    public var greeting: String?
    /// Declarations as in docs/protocol-reference.md, "Tool declarations".
    public var tools: [JSON] = []
    /// By the tool's name; `convo.*` may be handled, too.
    public var handlers: [String: ToolHandler] = [:]
    /// The reply so far, to be drawn in place of the one before.
    public var onPartial: @MainActor (String) -> Void = { _ in }
    /// A reply that is whole.
    public var onFinal: @MainActor (String) -> Void = { _ in }
    /// `idle`, `listening`, `transcribing`, `thinking` or `speaking`.
    public var onState: @MainActor (String) -> Void = { _ in }
    /// A question or an apology that is no reply of the model; it is spoken, too.
    public var onQuestion: @MainActor (String) -> Void = { _ in }
    /// Show a card whose buttons call `Client.decide`. Without it questions are spoken.
    public var onApproval: (@MainActor (Approval) -> Void)?
    /// Take the card away: the question with this `approvalId` is settled.
    public var onApprovalSettled: @MainActor (String) -> Void = { _ in }
    /// An `error` of the server; with the code `unauthorized` also a handshake that it refused, which ends the client.
    public var onError: @MainActor (ServerError) -> Void = { _ in }
    /// A transcript that the server did not take and that is not sent again.
    public var onUnsent: @MainActor (String) -> Void = { _ in }
    /// `connecting`, `open` or `closed`, and why it is not open.
    public var onConnection: @MainActor (_ state: String, _ reason: String) -> Void = { _, _ in }
    /// Every frame that is sent or read, including duplicates.
    public var onEvent: @MainActor (_ sent: Bool, _ event: Event) -> Void = { _, _ in }
    /// Words to listen for, the likeliest first: the `contextualStrings` of the next recognition request.
    public var onHints: (@MainActor ([String]) -> Void)?
    /// The transcript is half a sentence: the server waits for the other half, so listen on.
    public var onUnfinished: (@MainActor () -> Void)?
    /// How long half a sentence waits for the other half; 0 is not at all. Default: the operator's.
    public var holdUnfinishedMs: Int?
    /// Say a text and return at its end; the task is cancelled to stop it.
    public var speak: @MainActor (Utterance) async throws -> Void = { _ in }
    /// Let the paused voice go on where it was: the person has not interrupted it.
    public var onResume: @MainActor () -> Void = {}
    /// Names of protocol extensions; default: all that the library serves.
    public var capabilities: [String]?
    public var firstPause = 0.5
    public var longestPause = 15.0
    public var session = URLSession.shared

    public init(url: URL) { self.url = url }
}

/// Runs a call; its task is cancelled with it. It returns a text, any JSON value, or
/// `.showing(images)`; an error that it throws is the call's error.
public typealias ToolHandler = @MainActor (_ arguments: [String: JSON], _ run: ToolRun) async throws -> JSON

@MainActor public struct ToolRun {
    public let callId: String
    public let name: String
    let report: @MainActor (_ message: String?, _ percent: Double?) -> Void

    /// Tell that the call goes on: its time limit starts again.
    public func progress(_ message: String? = nil, percent: Double? = nil) { report(message, percent) }
}

/// Thrown by a handler that was cancelled.
public struct ToolCancelled: Error {
    public enum Effect: String, Sendable { case none, partial, complete }
    let effect: Effect
    let result: String?

    public init(_ effect: Effect, result: String? = nil) { (self.effect, self.result) = (effect, result) }
}

/// With `segments` a part of the reply `speechId`: its number, and whether it is the last.
public struct Utterance: Sendable {
    public let text: String
    /// The text's language (BCP 47). Without it, the locale's.
    public let lang: String?
    public let speechId: String?
    public let segment: Int?
    public let last: Bool
}

/// What a person is asked. Show its texts as text.
public struct Approval: Identifiable, Sendable {
    public var id: String { approvalId }
    public let approvalId, batchId, callId, name: String
    public let arguments: [String: JSON]
    public let argumentsDigest, risk: String
    public let reasons: [String]
    public let prompt: String
    public let scopes: [String]
    public let expiresAt: String
    public let preview: String?
    /// The headline, if the tool has a template or a title.
    public let title: String?
    /// Why the last edit was refused.
    public let refused: String?

    init(_ request: Payload, refused: String?) {
        approvalId = request.text("approvalId")
        batchId = request.text("batchId")
        callId = request.text("callId")
        name = request.text("name")
        arguments = request["arguments"]?.object ?? [:]
        argumentsDigest = request.text("argumentsDigest")
        risk = request.text("risk")
        reasons = request.texts("reasons")
        prompt = request.text("prompt")
        scopes = request.texts("scopes")
        expiresAt = request.text("expiresAt")
        preview = request["preview"]?.text
        title = request["title"]?.text
        self.refused = refused
    }
}

public enum Decision: Sendable {
    /// `once`, `session` or `always`: one of the request's scopes.
    case allow(scope: String = "once")
    case deny
    /// Allow it with these arguments, all of them.
    case edit([String: JSON])
}

public struct ServerError: Error, Sendable {
    public let code, message: String
    public let retryAfterMs: Int?
}

/// One frame of the protocol (docs/protocol.md).
public struct Event: Codable, Sendable {
    public let id, type, timestamp, sessionId: String
    public let protocolVersion: Int
    public let payload: [String: JSON]
}

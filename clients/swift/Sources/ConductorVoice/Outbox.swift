import Foundation

let transcript = "user.audio.transcript.final"
let interrupted = "audio.output.interrupted"
let paused = "audio.output.paused"
let fact = "context.add"
let maxResumed = 256
private let kept = 128
private let unsentTranscripts = 8
private let transcriptAge = 60.0 // the person has moved on: an older transcript is not sent again
private let interruptionAge = 10.0 // the server repeats no older speech

/// Events in order, oldest first, that the server has not acknowledged. They are sent again on each new
/// connection under their original ids: the server takes an id once.
@MainActor final class Outbox {
    final class Entry {
        var event: Event
        let shown: Bool // it answers a UI call
        var sentOn: Int? // the number of its last connection
        let at = Date()

        init(_ event: Event, shown: Bool) { (self.event, self.shown) = (event, shown) }

        var isTranscript: Bool { event.type == transcript }
        var age: TimeInterval { Date().timeIntervalSince(at) }
    }

    private(set) var entries: [Entry] = []
    var unsent: @MainActor (Entry) -> Void = { _ in }

    func find(_ id: String?) -> Entry? { entries.first { $0.event.id == id } }

    func result(_ callId: String) -> Entry? {
        entries.first { $0.event.type == "tool.result" && $0.event.payload.text("callId") == callId }
    }

    func add(_ event: Event, shown: Bool) {
        entries.append(Entry(event, shown: shown))
        let early = entries.filter { $0.isTranscript && $0.sentOn == nil }
        if early.count > unsentTranscripts { giveUp { $0 === early[0] } }
        if entries.count > kept, let oldest = entries.first { giveUp { $0 === oldest } }
    }

    func acknowledged(_ ids: [String]) {
        entries.removeAll { ids.contains($0.event.id) }
    }

    func forget(_ callIds: Set<String>) {
        entries.removeAll { $0.event.type == "tool.result" && callIds.contains($0.event.payload.text("callId")) }
    }

    /// Drop events that are too old to be sent again (a pause: once it has ended), and after the loss of a session all
    /// but transcripts and facts.
    func expire(gone: Bool = false, pauseId: String? = nil) {
        giveUp { entry in
            if entry.isTranscript { return entry.age >= transcriptAge }
            if entry.event.type == paused { return gone || entry.event.id != pauseId }
            if entry.event.type == fact { return false }
            return gone || (entry.event.type == interrupted && entry.age >= interruptionAge)
        }
    }

    func giveUp(_ which: (Entry) -> Bool) {
        let left = entries.filter(which)
        entries.removeAll(where: which)
        for entry in left where entry.isTranscript { unsent(entry) }
    }

    /// The results for `session.start`, in `room` bytes: content that does not fit is asked for.
    func done(room: Int) -> [Payload] {
        var left = room
        return entries.filter { $0.event.type == "tool.result" && !$0.shown }.prefix(maxResumed).map { entry in
            var one = entry.event.payload
            one["error"] == .null ? (one["error"] = nil) : (one["result"] = nil)
            if one["images"] != nil || encoded(one).utf8.count >= left { one = .fields(["callId": one["callId"]]) }
            left -= encoded(one).utf8.count + 1
            return one
        }
    }
}

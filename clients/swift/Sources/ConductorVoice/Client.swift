import Foundation
#if canImport(FoundationNetworking)
import FoundationNetworking
#endif

private let served = [
    "resume", "tools", "cancel", "lease", "late", "activity", "pause", "segments", "images", "turns", "context",
    "metrics", "goaway", "diagnostics",
]
private let finalErrors: Set = ["unauthorized", "unsupported_protocol_version", "session_mismatch"]
// Events that no replay repeats.
private let passing: Set = [
    "assistant.speech.partial", "session.ping", "session.started", "session.goaway", "event.ack", "diagnostic",
    "turn.metrics", "turn.hint", "stt.hints",
]
private let superseded = 4409 // another connection serves the session: coming back would be a duel
private let remembered = 2_000 // ids of events and calls
private let startLimit = 10.0
private let steady = 5.0 // only a connection that lasted resets the pauses
private let silenceLimit = 60.0 // the server pings every 20 s
private let retryPause = 1.0
private let toolLimit = 600.0
private let cancelLimit = 3.0 // for a cancelled handler, until later events no longer wait for it
private let maxResumeBytes = 32_768
private let maxStartBytes = 64_512 // the soft limit of an event less room for the envelope
private let maxResultBytes = 1_044_480 // the server's hard limit of a frame less room for the envelope
private let maxResultCharacters = 131_072
private let maxCancelledCharacters = 8_192
private let maxWords = 2_000
private let noObject = "The arguments are not a JSON object."

/// Connect, and stay connected until `Client.close()`.
@MainActor public func connect(_ options: Options) -> Client {
    let client = Client(options)
    client.start()
    return client
}

/// A voice app's side of one session.
@MainActor public final class Client {
    public let sessionId: String
    /// The last state that `onState` reported.
    public private(set) var state: String?

    private enum Stage { case queued, begun, taken, cancelled, unwanted, dropped }

    private enum Outcome: Sendable { case result(String, [JSON] = []), error(String), cancelled(ToolCancelled) }

    @MainActor private final class Run {
        let name: String
        let outcome = Once<Outcome>()
        /// Later events may go on.
        let passed = Once<Bool>()
        var task: Task<Void, Never>?
        var cancelled = false
        var late = false

        init(_ name: String) { self.name = name }

        func cancel() {
            cancelled = true
            task?.cancel()
            Task {
                try? await Task.sleep(nanoseconds: UInt64(cancelLimit * 1e9))
                passed.settle(true)
            }
        }
    }

    /// A pause of the voice: the id of its event, and whether the person has said something since.
    @MainActor private final class Pause {
        let eventId: String
        let over = Once<Bool>()
        var followed = false

        init(_ eventId: String) { self.eventId = eventId }
    }

    private final class Question {
        let request: Payload
        var answer: Payload?
        var answerId: String?
        var settled = false

        init(_ request: Payload) { self.request = request }
    }

    private var options: Options
    private let capabilities: [String]
    private var accepted: Set<String> = []
    private var socket: URLSessionWebSocketTask?
    private var outgoing: AsyncStream<String>.Continuation? // frames of that socket, in order
    private var number = 0 // of the socket
    private var live = false // the server has answered `session.start` on it
    private var startId = ""
    private var openedAt = Date()
    private var readAt = Date()
    private var failures = 0 // the tries that failed, and the connections before them that did not last
    private var brief = 0 // connections in a row that did not last
    private var retry: Task<Void, Never>? // the pause before the next try, if it may be cut short
    private var closed = false
    private var known = false // the server has answered this client
    private var reported: Set<String> = [] // calls whose results are in the last `session.start`
    private let prefix = String(UUID().uuidString.prefix(13))
    private var count = 0
    private var seen = Recent<Bool>(limit: remembered)
    private var lastEventId: String?
    private let outbox = Outbox()
    private var turns: [String: Once<String>] = [:] // by the transcript's id
    private var calls = Recent<Stage>(limit: remembered)
    private var runs: [String: Run] = [:]
    private var questions = Recent<Question>(limit: maxResumed)
    private let inbox = AsyncStream<(Event, Int)>.makeStream()
    private var voice = Task<Void, Never> {} // with segments speeches wait for each other, and only an `idle` for them
    private var arrivals = 0
    private var silentTo = 0
    private var speaking: (id: String, task: Task<Void, Never>, ended: Once<String?>)?
    private var pausing: Pause?
    private var replying = false // a partial or final came since the last message

    init(_ options: Options) {
        self.options = options
        sessionId = options.sessionId
        let listens = options.onHints != nil || options.onUnfinished != nil || options.holdUnfinishedMs != nil
        capabilities = options.capabilities
            ?? served + (options.onApproval == nil ? [] : ["approval"]) + (listens ? ["hints"] : [])
        outbox.unsent = { [weak self] entry in
            options.onUnsent(entry.event.payload.text("text"))
            self?.turnEnded(entry.event.id, "unsent")
        }
        Task { await handleAll() }
    }

    func start() {
        open()
        watch()
    }

    /// Send a final transcript. The value is the reason of `turn.ended`, which comes after the turn's last event; or
    /// `unsent` (see `onUnsent`), `lost` with its session, or `closed`.
    @discardableResult public func say(_ text: String, lang: String? = nil) -> Task<String, Never> {
        say(text, lang, [])
    }

    /// Send a final transcript about images. Throws `TooManyPictures` for more than three, and sends nothing.
    @discardableResult public func say(
        _ text: String, lang: String? = nil, images: [Picture]
    ) throws -> Task<String, Never> {
        try checkCount(of: images)
        return say(text, lang, images)
    }

    private func say(_ text: String, _ lang: String?, _ images: [Picture]) -> Task<String, Never> {
        let ended = Once<String>()
        let event = event(transcript, Payload.fields([
            "text": .string(text), "lang": lang.map(JSON.string),
            "images": images.isEmpty ? nil : .array(images.map(\.json)),
        ]))
        pausing?.followed = true
        if closed { ended.settle("closed") } else { turns[event.id] = ended }
        keep(event)
        if let retry {
            retry.cancel()
            open()
        }
        return Task { await ended.wait() }
    }

    private func turnEnded(_ eventId: String, _ reason: String) {
        turns.removeValue(forKey: eventId)?.settle(reason)
    }

    /// Send an interim transcript while the person speaks.
    public func hearing(_ text: String) { send("user.audio.transcript.partial", ["text": .string(text)]) }

    /// The person begins to speak over the speech: pause the voice if this returns true, else call `interrupt`. The voice
    /// goes on at `onResume`, unless its task is cancelled. `spokenText` or `playedMs` is the heard part.
    @discardableResult public func pause(spokenText: String? = nil, playedMs: Int? = nil) -> Bool {
        guard let speaking, accepted.contains("pause") else { return false }
        if pausing != nil { return true }
        let event = event(paused, .fields([
            "speechId": .string(speaking.id),
            "spokenText": spokenText.map(JSON.string),
            "playedMs": playedMs.map(JSON.integer),
        ]))
        pausing = Pause(event.id)
        keep(event)
        return true
    }

    @discardableResult private func endPause() -> Bool {
        defer { pausing = nil }
        pausing?.over.settle(true)
        return pausing != nil
    }

    private func goOn() {
        if endPause() { options.onResume() }
    }

    private func silence() {
        endPause()
        silentTo = arrivals
        speaking?.ended.settle(nil)
        speaking?.task.cancel()
    }

    /// Barge in: stop the speech, queued speeches and the turn. `spokenText` or `playedMs` is the heard part.
    public func interrupt(spokenText: String? = nil, playedMs: Int? = nil, reason: String = "user_speech") {
        // The voice stops at once; its result follows in a later task, after the interruption.
        silence()
        keep(event(interrupted, .fields([
            "reason": .string(reason),
            "spokenText": spokenText.map(JSON.string),
            "playedMs": playedMs.map(JSON.integer),
        ])))
    }

    /// Tell the model a fact without a turn. A fact with a `key` replaces the former one, and an empty text removes it. It ends
    /// after `ttlS` seconds. `untrusted`: others have written it. The server takes at most 2,000 characters.
    public func addContext(_ text: String, key: String? = nil, ttlS: Double? = nil, untrusted: Bool = false) {
        keep(event(fact, .fields([
            "text": .string(text),
            "key": key.map(JSON.string),
            "ttlS": ttlS.map(JSON.number),
            "untrusted": .bool(untrusted),
        ])))
    }

    /// Stop the running turn, but not the speech, unless it is paused.
    public func cancelResponse() {
        guard live, accepted.contains("cancel") else { return }
        if pausing != nil { silence() } // the server cuts a paused speech
        write(event("response.cancel", [:]))
    }

    /// Decide a card. `words` are the person's, for the model. A question that is settled is left alone.
    public func decide(_ approvalId: String, _ decision: Decision, words: String? = nil) {
        guard let question = questions[approvalId], !question.settled, question.answer == nil else { return }
        var (name, scope, edited) = ("deny", "once", JSON?.none)
        switch decision {
        case .allow(let wanted):
            (name, scope) = ("allow", question.request.texts("scopes").contains(wanted) ? wanted : "once")
        case .deny: break
        case .edit(let arguments): (name, edited) = ("edit", .object(arguments))
        }
        question.answer = .fields([
            "approvalId": .string(approvalId),
            "argumentsDigest": question.request["argumentsDigest"],
            "decision": .string(name),
            "scope": .string(scope),
            "editedArguments": edited,
            "message": words.map { .string(String($0.unicodeScalars.prefix(maxWords))) },
        ])
        answer(question)
    }

    /// Replace the declared tools and their handlers.
    public func declare(_ tools: [JSON], handlers: [String: ToolHandler]) {
        options.tools = tools
        options.handlers = handlers
        send("session.update", ["tools": .array(tools)])
    }

    /// Use a new token of the same person, also for later connections, after `session.goaway` with `token_expires`.
    public func renew(token: String) {
        options.token = token
        send("session.update", ["token": .string(token)])
    }

    /// Send any event once, if there is a connection.
    public func send(_ type: String, _ payload: [String: JSON]) { write(event(type, payload)) }

    /// Close the connection and stop the handlers. The session goes on until the server ends it.
    public func close() {
        if !closed { end("The client was closed.") }
    }

    // MARK: The connection

    private func open() {
        guard ["ws", "wss"].contains(options.url.scheme) else { return end("The address is not ws: or wss:.") }
        retry = nil
        number += 1
        openedAt = Date()
        var request = URLRequest(url: options.url)
        request.setValue("conductor.v1", forHTTPHeaderField: "Sec-WebSocket-Protocol")
        if let token = options.token { request.setValue("Bearer \(token)", forHTTPHeaderField: "Authorization") }
        let socket = options.session.webSocketTask(with: request)
        socket.maximumMessageSize = 4 << 20
        self.socket = socket
        socket.resume()
        Task { await listen(to: socket) }
        let (frames, outgoing) = AsyncStream<String>.makeStream()
        self.outgoing = outgoing
        Task {
            for await frame in frames { try? await socket.send(.string(frame)) } // a failure ends the reading, too
        }
        later(startLimit) { [weak self] in
            if self?.socket === socket, self?.live == false { self?.drop("The server does not answer.") }
        }
        begin()
    }

    private func listen(to socket: URLSessionWebSocketTask) async {
        while self.socket === socket {
            do {
                let message = try await socket.receive()
                if self.socket === socket, case .string(let text) = message { read(text) }
            } catch {
                guard self.socket === socket else { return }
                if let status = (socket.response as? HTTPURLResponse)?.statusCode, [401, 403].contains(status) {
                    return refused(status)
                }
                lost(socket.closeCode.rawValue, error.localizedDescription)
            }
        }
    }

    /// The server does not accept the token: another try is pointless.
    private func refused(_ status: Int) {
        let message = "The server answered HTTP \(status): the token is missing or not accepted."
        options.onError(ServerError(code: "unauthorized", message: message, retryAfterMs: nil))
        end(message)
    }

    private func watch() {
        later(10) { [weak self] in
            guard let self else { return }
            if live, Date().timeIntervalSince(readAt) > silenceLimit { drop("The server is silent.") }
            watch()
        }
    }

    private func drop(_ reason: String, retryAfterMs: Int = 0) {
        socket?.cancel()
        lost(1006, reason, retryAfterMs: retryAfterMs)
    }

    func lost(_ code: Int, _ reason: String, retryAfterMs: Int = 0) {
        if live {
            failures = Date().timeIntervalSince(openedAt) >= steady ? 0 : brief
            brief = failures + 1
        }
        socket = nil
        outgoing?.finish()
        outgoing = nil
        live = false
        if code == superseded { return end("Another connection serves the session.") }
        let grown = options.firstPause * pow(2, Double(min(failures, 20)))
        let pause = min(options.longestPause, max(grown, Double(retryAfterMs) / 1000))
        failures += 1
        options.onConnection("connecting", "\(reason) (\(code))")
        let next = later(pause * Double.random(in: 0.5...1)) { [weak self] in self?.open() }
        retry = retryAfterMs > 0 ? nil : next // a time that the server named counts
    }

    private func end(_ reason: String) {
        closed = true
        socket?.cancel(with: .normalClosure, reason: nil)
        socket = nil
        outgoing?.finish()
        outgoing = nil
        live = false
        inbox.continuation.finish()
        endPause()
        speaking?.ended.settle(nil)
        speaking?.task.cancel()
        for run in runs.values {
            run.cancel()
            run.outcome.settle(.error(reason))
        }
        for id in questions.ids { questions[id].map(settle) }
        for id in turns.keys { turnEnded(id, "closed") }
        options.onConnection("closed", reason)
    }

    @discardableResult
    private func later(_ seconds: Double, _ act: @escaping @MainActor () -> Void) -> Task<Void, Never> {
        Task { [weak self] in
            guard (try? await Task.sleep(nanoseconds: UInt64(seconds * 1e9))) != nil else { return }
            if self?.closed == false { act() }
        }
    }

    private func begin() {
        outbox.expire(pauseId: pausing?.eventId)
        var start = Payload.fields([
            "sessionId": .string(sessionId),
            "locale": options.locale.map(JSON.string),
            "lang": options.lang.map(JSON.string),
            "timeZone": .string(options.timeZone),
            "model": options.model.map(JSON.string),
            "instructions": options.instructions.map(JSON.string),
            "variables": options.variables.map { .object($0.mapValues(JSON.string)) },
            "greeting": options.greeting.map(JSON.string),
            "capabilities": .array(capabilities.map(JSON.string)),
            "tools": .array(options.tools),
            "holdUnfinishedMs": options.holdUnfinishedMs.map(JSON.integer),
        ])
        if known, capabilities.contains("resume") {
            start["resume"] = resume(room: maxStartBytes - encoded(start).utf8.count)
        }
        let event = event("session.start", start)
        startId = event.id
        transmit(event)
    }

    /// Results and pending calls, in `room` bytes. The server requests or repeats the others.
    private func resume(room: Int) -> JSON {
        var left = min(room, maxResumeBytes) - 256
        let waiting = calls.ids.filter { calls[$0] == .queued || calls[$0] == .begun }
        let pending = waiting.prefix(maxResumed).prefix { callId in
            left -= callId.utf8.count + 3
            return left >= 0
        }
        let done = outbox.done(room: left)
        reported = Set(done.filter { $0.count > 1 }.map { $0.text("callId") })
        return .object(.fields([
            "lastEventId": lastEventId.map(JSON.string),
            "done": .array(done.map(JSON.object)),
            "pending": .array(pending.map(JSON.string)),
        ]))
    }

    private func welcome(_ payload: Payload) {
        let unwanted = Set(payload.texts("drop"))
        known = true
        live = true
        accepted = Set(payload.texts("capabilities"))
        let gone = payload["resumed"] != true
        if gone || !accepted.contains("pause") { goOn() } // the server knows of no pause
        outbox.expire(gone: gone, pauseId: pausing?.eventId)
        if gone {
            for id in turns.keys where outbox.find(id) == nil { turnEnded(id, "lost") }
            for id in questions.ids { questions[id].map(settle) }
        }
        for callId in unwanted {
            calls[callId] = .dropped
            if let run = runs[callId], readsOnly(run.name) { run.cancel() }
        }
        // Results in `session.start` were recorded before this answer.
        outbox.forget(unwanted.union(reported.subtracting(payload.texts("resend"))))
        reported = []
        options.onConnection("open", "")
        flush()
        for question in questions.ids.compactMap({ questions[$0] }) where question.answer == nil && !question.settled {
            shown(question)
        }
    }

    // MARK: Sending

    private func event(_ type: String, _ payload: Payload) -> Event {
        count += 1
        let timestamp = ISO8601DateFormatter().string(from: Date())
        return Event(
            id: "\(prefix)-\(count)", type: type, timestamp: timestamp, sessionId: sessionId, protocolVersion: 1,
            payload: payload)
    }

    private func write(_ event: Event) {
        if live { transmit(event) }
    }

    private func transmit(_ event: Event) {
        outgoing?.yield(encoded(event))
        options.onEvent(true, event)
    }

    /// Send an event until it is acknowledged. `shown`: it answers a UI call.
    private func keep(_ event: Event, shown: Bool = false) {
        if closed { return }
        outbox.add(event, shown: shown)
        flush()
    }

    private func flush() {
        guard live else { return }
        for entry in outbox.entries where entry.sentOn != number {
            entry.sentOn = number
            transmit(entry.event)
        }
    }

    // MARK: Reading

    func read(_ text: String) {
        guard let event = try? JSONDecoder().decode(Event.self, from: Data(text.utf8)) else { return }
        readAt = Date()
        options.onEvent(false, event)
        if seen[event.id] != nil { return }
        seen[event.id] = true
        arrivals += 1
        notice(event.type, event.payload)
        if event.type == "assistant.speech.partial" || !passing.contains(event.type) {
            inbox.continuation.yield((event, arrivals))
        }
    }

    /// What must not wait for the events before it.
    private func notice(_ type: String, _ payload: Payload) {
        let callId = payload.text("callId")
        switch type {
        case "session.started": if !live { welcome(payload) }
        case "event.ack": outbox.acknowledged(payload.texts("eventIds"))
        case "error": failed(payload)
        case "tool.call":
            if isOurs(payload), calls[callId] == nil { calls[callId] = .queued }
            // The person's words are taken: they have interrupted the paused speech.
            if pausing?.followed == true, isWordsOfPerson(payload) { silence() }
        case "audio.output.resume": goOn()
        case "tool.cancel":
            switch calls[callId] {
            case .begun: runs[callId]?.cancel()
            case .queued: cancelled(callId, .none)
            case nil: calls[callId] = .unwanted // an event that waits may bring it yet
            default: break
            }
        case "approval.request": asked(payload)
        case "approval.resolved": resolved(payload)
        case "stt.hints": options.onHints?(payload.texts("phrases"))
        case "turn.hint": if payload["complete"] == .bool(false) { options.onUnfinished?() }
        default: break
        }
    }

    private func isWordsOfPerson(_ payload: Payload) -> Bool {
        guard payload.text("name") == "convo.appendMessage" else { return false }
        return (try? JSON(parsing: payload.text("arguments")))?.object?.text("role") == "user"
    }

    private func failed(_ payload: Payload) {
        let error = serverError(payload)
        let eventId = payload.text("eventId")
        if eventId == startId, !live {
            if finalErrors.contains(error.code) {
                end("\(error.message) (\(error.code))")
            } else if error.code != "store_unavailable" { // the server tries that again itself
                drop(error.message, retryAfterMs: error.retryAfterMs ?? 0)
            }
        } else if let entry = outbox.find(eventId) {
            if entry.isTranscript {
                outbox.giveUp { $0 === entry }
            } else if error.code == "store_unavailable" {
                later(retryPause) { [weak self] in self?.retry(entry) }
            } else if error.code == "invalid_event" {
                outbox.giveUp { $0 === entry }
            }
        }
    }

    private func retry(_ entry: Outbox.Entry) {
        guard outbox.entries.contains(where: { $0 === entry }) else { return }
        entry.event = event(entry.event.type, entry.event.payload)
        entry.sentOn = nil
        flush()
    }

    private func handleAll() async {
        for await (event, number) in inbox.stream where !closed {
            await handle(event, number)
            if !passing.contains(event.type) { lastEventId = event.id }
        }
    }

    private func handle(_ event: Event, _ number: Int) async {
        let payload = event.payload
        switch event.type {
        case "assistant.speech.partial", "assistant.speech.final":
            replying = true
            let hook = event.type == "assistant.speech.partial" ? options.onPartial : options.onFinal
            hook(payload.text("text"))
        case "error": options.onError(serverError(payload))
        case "turn.ended": turnEnded(payload.text("eventId"), payload.text("reason"))
        case "tool.call":
            let name = payload.text("name")
            let text = payload.text("arguments")
            let arguments = (try? JSON(parsing: text.isEmpty ? "{}" : text))?.object
            if name == "tts.speak", accepted.contains("segments") {
                let before = voice
                voice = Task {
                    await before.value
                    if !closed { await show(payload, arguments, number) }
                }
            } else if isUiCall(name) {
                await show(payload, arguments, number)
            } else if isOurs(payload) {
                await run(payload.text("callId"), name, arguments)
            }
        default: break
        }
    }

    // MARK: UI calls

    private func show(_ payload: Payload, _ arguments: Payload?, _ number: Int) async {
        let callId = payload.text("callId")
        let name = payload.text("name")
        if arguments?.text("state") == "idle" { await voice.value }
        var failure: String?
        if let arguments {
            failure = name == "tts.speak" ? await speak(arguments, number, callId) : await draw(name, arguments, callId)
        } else {
            failure = noObject
        }
        let answer = name == "tts.speak" ? #"{"spoken":true}"# : #"{"ok":true}"#
        keep(event("tool.result", result(callId, failure == nil ? answer : nil, failure)), shown: true)
    }

    private func draw(_ name: String, _ arguments: Payload, _ callId: String) async -> String? {
        if name == "convo.setState" {
            state = arguments.text("state")
            options.onState(arguments.text("state"))
        }
        if name == "convo.appendMessage" {
            if arguments.text("role") == "assistant", !replying { options.onQuestion(arguments.text("text")) }
            replying = false
        }
        do {
            _ = try await options.handlers[name]?(arguments, ToolRun(callId: callId, name: name) { _, _ in })
            return nil
        } catch {
            return words(error)
        }
    }

    private func speak(_ arguments: Payload, _ number: Int, _ callId: String) async -> String? {
        _ = await pausing?.over.wait() // the speech before it ended while it was paused
        if number <= silentTo || closed { return nil }
        let speech = Utterance(
            text: arguments.text("text"), lang: arguments["lang"]?.text, speechId: arguments["speechId"]?.text,
            segment: arguments["segment"]?.integer, last: arguments["last"] == true)
        // A voice that does not hear the cancellation must not hold the events that follow.
        let ended = Once<String?>()
        let task = Task {
            do {
                try await options.speak(speech)
                ended.settle(nil)
            } catch {
                ended.settle(words(error))
            }
        }
        speaking = (speech.speechId ?? callId, task, ended)
        let failure = await ended.wait()
        speaking = nil
        return failure
    }

    // MARK: Tools

    private func run(_ callId: String, _ name: String, _ arguments: Payload?) async {
        if calls[callId] == .unwanted { return cancelled(callId, .none) }
        guard calls[callId] == .queued else { return resend(callId) }
        guard let arguments else { return finish(callId, .error(noObject)) }
        guard let handler = options.handlers[name] else {
            return finish(callId, .error("This device has no tool \(name)."))
        }
        let run = Run(name)
        runs[callId] = run
        calls[callId] = .begun
        call(callId, run, handler, arguments)
        // A handler that does not hear the cancellation must not hold the events that follow.
        Task {
            await report(callId, run)
            run.passed.settle(true)
        }
        _ = await run.passed.wait()
    }

    private func report(_ callId: String, _ run: Run) async {
        let limit = Task {
            guard (try? await Task.sleep(nanoseconds: UInt64(toolLimit * 1e9))) != nil else { return }
            run.late = true
            run.cancel()
            run.outcome.settle(.error("The device's tool did not end in time."))
        }
        let outcome = await run.outcome.wait()
        limit.cancel()
        runs[callId] = nil
        if closed || calls[callId] == .dropped { return }
        guard run.cancelled, !run.late else { return finish(callId, outcome) }
        switch outcome {
        case .cancelled(let word): cancelled(callId, word.effect, word.result)
        case .result(let text, _): cancelled(callId, .complete, text) // it ended in spite of the cancellation
        case .error: cancelled(callId, readsOnly(run.name) ? .none : .partial) // without its report, the worst case
        }
    }

    private func call(_ callId: String, _ run: Run, _ handler: @escaping ToolHandler, _ arguments: Payload) {
        lease("tool.started", callId, [:])
        let toolRun = ToolRun(callId: callId, name: run.name) { [weak self] message, percent in
            self?.lease("tool.progress", callId, [
                "message": message.map(JSON.string), "percent": percent.map(JSON.number),
            ])
        }
        run.task = Task {
            do {
                let value = try await handler(arguments, toolRun)
                let (images, result) = value.shown ?? ([], value)
                try checkCount(of: images)
                run.outcome.settle(.result(result.text ?? encoded(result), images))
            } catch let error as ToolCancelled {
                run.outcome.settle(.cancelled(error))
            } catch {
                run.outcome.settle(.error(words(error)))
            }
        }
    }

    private func lease(_ type: String, _ callId: String, _ report: [String: JSON?]) {
        guard accepted.contains("lease"), runs[callId] != nil else { return }
        write(event(type, .fields(report.merging(["callId": .string(callId)]) { $1 })))
    }

    private func finish(_ callId: String, _ outcome: Outcome) {
        var (text, error): (String?, String?)
        var images: [JSON] = []
        switch outcome {
        case .result(let value, let given): (text, images) = (value, given)
        case .error(let value): error = value
        case .cancelled(let word): error = "cancelled: \(word.effect)"
        }
        var whole = result(callId, text, error)
        if encoded(whole).utf8.count > maxResultBytes {
            whole = result(callId, shortened(text, maxResultCharacters), shortened(error, maxResultCharacters))
        }
        if !images.isEmpty, accepted.contains("images") { whole["images"] = .array(images) }
        calls[callId] = .taken
        keep(event("tool.result", whole))
    }

    private func cancelled(_ callId: String, _ effect: ToolCancelled.Effect, _ result: String? = nil) {
        calls[callId] = .cancelled
        keep(event("tool.cancelled", .fields([
            "callId": .string(callId),
            "effect": .string(effect.rawValue),
            "result": shortened(result, maxCancelledCharacters).map(JSON.string),
        ])))
    }

    /// A replay under a new id: it is not run again, but its answer may have been lost.
    private func resend(_ callId: String) {
        outbox.result(callId)?.sentOn = nil
        flush()
    }

    private func readsOnly(_ name: String) -> Bool {
        let tool = options.tools.lazy.compactMap(\.object).first { $0.text("name") == name }
        return tool?["annotations"]?.object?["readOnlyHint"] == true
    }

    // MARK: Approvals

    private func asked(_ request: Payload) {
        let approvalId = request.text("approvalId")
        if let known = questions[approvalId] {
            if known.request["argumentsDigest"] == request["argumentsDigest"] {
                if known.answer != nil, !known.settled, outbox.find(known.answerId) == nil { answer(known) }
                return
            }
            settle(known) // other arguments: the decision does not apply
        }
        let question = Question(request)
        questions[approvalId] = question
        ask(question)
    }

    private func ask(_ question: Question, refused: String? = nil) {
        options.onApproval?(Approval(question.request, refused: refused))
        shown(question)
    }

    /// A yes by voice counts only after this: the person must be able to see the card.
    private func shown(_ question: Question) {
        guard options.onApproval != nil else { return }
        write(event("approval.shown", .fields(["approvalId": question.request["approvalId"]])))
    }

    private func answer(_ question: Question) {
        guard let answer = question.answer else { return }
        let event = event("approval.response", answer)
        question.answerId = event.id
        keep(event)
    }

    private func resolved(_ payload: Payload) {
        guard let question = questions[payload.text("approvalId")], !question.settled else { return }
        guard payload.text("outcome") == "refused", question.answer?.text("decision") == "edit" else {
            return settle(question)
        }
        question.answer = nil
        ask(question, refused: payload["message"]?.text ?? "It was refused.")
    }

    /// It stays known, so that a replay does not ask it again.
    private func settle(_ question: Question) {
        if question.settled { return }
        question.settled = true
        options.onApprovalSettled(question.request.text("approvalId"))
    }
}

private func isUiCall(_ name: String) -> Bool { name.hasPrefix("convo.") || name.hasPrefix("tts.") }

private func isOurs(_ call: Payload) -> Bool {
    !isUiCall(call.text("name")) && !call.text("name").hasPrefix("bridge.")
}

private func serverError(_ payload: Payload) -> ServerError {
    ServerError(
        code: payload.text("code"), message: payload.text("message"), retryAfterMs: payload["retryAfterMs"]?.integer)
}

private func result(_ callId: String, _ result: String?, _ error: String?) -> Payload {
    ["callId": .string(callId), "result": result.map(JSON.string) ?? .null, "error": error.map(JSON.string) ?? .null]
}

private func words(_ error: Error) -> String {
    (error as? LocalizedError)?.errorDescription ?? String(describing: error)
}

private func shortened(_ text: String?, _ most: Int) -> String? {
    guard let text, text.unicodeScalars.count > most else { return text }
    let left = text.unicodeScalars.count - most
    return "\(String(text.unicodeScalars.prefix(most)))… [\(left) characters left out by the device]"
}

import XCTest
@testable import ConductorVoice

/// A client without a connection reads the server's frames; what it sends is seen by `onEvent`.
@MainActor final class GoldenTests: XCTestCase {
    private let folder = URL(fileURLWithPath: #filePath).appendingPathComponent("../../../../../tests/unit/events/golden")
        .standardizedFileURL
    private var heard: [String] = []
    private var sent: [Event] = []
    private var reads = 0
    private var voice: @MainActor () async throws -> Void = {}

    private func client(_ handlers: [String: ToolHandler] = [:]) -> Client {
        var options = Options(url: URL(string: "ws://127.0.0.1:1/ws")!)
        options.sessionId = "s-1"
        options.handlers = handlers
        options.onState = { self.heard.append($0) }
        options.onApproval = { self.heard.append("asked \($0.name) \($0.risk) \($0.scopes)") }
        options.onApprovalSettled = { self.heard.append("settled \($0)") }
        options.onError = { self.heard.append("error \($0.code) \($0.retryAfterMs ?? 0)") }
        options.onEvent = { sent, event in if sent { self.sent.append(event) } }
        options.onHints = { self.heard.append("hints \($0)") }
        options.onUnfinished = { self.heard.append("unfinished") }
        options.onResume = { self.heard.append("resumed") }
        options.speak = {
            self.heard.append("spoken \($0.text.prefix(7))")
            try await self.voice()
        }
        return Client(options)
    }

    /// Each time under a new id, as another event.
    private func read(_ name: String, by client: Client, changing change: (String, String)? = nil) throws {
        reads += 1
        var frame = try String(contentsOf: folder.appendingPathComponent("\(name).json"), encoding: .utf8)
        if let change { frame = frame.replacingOccurrences(of: change.0, with: change.1) }
        client.read(frame.replacingOccurrences(of: "evt_00000000000000000000000000000001", with: "evt_\(reads)"))
    }

    /// The server accepts one more capability.
    private func begin(_ client: Client, with capability: String) throws {
        try read("session.started.resume", by: client, changing: (#""resume","#, #""resume","\#(capability)","#))
    }

    /// The next event of this type that was sent.
    private func next(_ type: String) async throws -> [String: JSON] {
        for _ in 0..<1_000 {
            while !sent.isEmpty {
                let event = sent.removeFirst()
                if event.type == type { return event.payload }
            }
            await Task.yield()
        }
        throw ServerError(code: "not_sent", message: type, retryAfterMs: nil)
    }

    func testEveryFrameIsAnEventAndNoneFails() async throws {
        let client = client()
        let files = try FileManager.default.contentsOfDirectory(atPath: folder.path).filter { $0.hasSuffix(".json") }
        XCTAssertGreaterThan(files.count, 30)
        for file in files.sorted() {
            let data = try Data(contentsOf: folder.appendingPathComponent(file))
            XCTAssertTrue(file.hasPrefix(try JSONDecoder().decode(Event.self, from: data).type))
            try read(String(file.dropLast(5)), by: client)
        }
        client.close()
    }

    func testACallRunsOnceThoughItComesTwice() async throws {
        var runs = 0
        let client = client(["agent.status": { _, run in
            runs += 1
            return .string("run \(runs) of \(run.callId)")
        }])
        try read("session.started.resume", by: client)
        try read("tool.call", by: client)
        let first = try await next("tool.result")
        XCTAssertEqual(first, ["callId": "call_1", "result": "run 1 of call_1", "error": .null])
        try read("tool.call", by: client)
        let second = try await next("tool.result")
        XCTAssertEqual(second, first)
        client.close()
    }

    func testADecisionEchoesTheDigest() async throws {
        let client = client()
        try read("session.started.resume", by: client)
        try read("approval.request", by: client)
        let shown = try await next("approval.shown")
        XCTAssertEqual(shown, ["approvalId": "appr_1"])
        client.decide("appr_1", .allow(scope: "always"), words: "yes")
        let decision = try await next("approval.response")
        XCTAssertEqual(decision["argumentsDigest"], .string(String(repeating: "0", count: 64)))
        XCTAssertEqual(decision["scope"], "once") // `always` was not offered
        XCTAssertEqual(decision["message"], "yes")
        try read("approval.resolved", by: client)
        XCTAssertEqual(heard, [#"asked notes.write high ["once", "session"]"#, "settled appr_1"])
        client.close()
    }

    func testATurnEndsByItsEventOrWithTheClient() async throws {
        let client = client()
        try read("session.started.resume", by: client)
        let (first, second) = (client.say("hello"), client.say("again"))
        let id = try XCTUnwrap(sent.first { $0.type == transcript }).id
        let frame = try String(contentsOf: folder.appendingPathComponent("turn.ended.json"), encoding: .utf8)
        client.read(frame.replacingOccurrences(of: "ios-42", with: id))
        let reason = await first.value
        XCTAssertEqual(reason, "answered")
        client.close()
        let closed = await second.value
        XCTAssertEqual(closed, "closed")
    }

    func testWhatTheAppIsTold() async throws {
        let client = client()
        try read("session.started.resume", by: client)
        for name in ["error.all", "tool.call.speak", "tool.call.set-state"] { try read(name, by: client) }
        _ = try await next("tool.result")
        _ = try await next("tool.result")
        XCTAssertEqual(heard, ["error rate_limited 1500", "spoken He said", "thinking"])
        client.close()
    }

    func testHintsAndHalfASentenceAreToldAtOnce() async throws {
        let client = client()
        try read("stt.hints", by: client)
        try read("turn.hint", by: client)
        XCTAssertEqual(heard, [#"hints ["yes", "no", "Café Zoë"]"#, "unfinished"])
        client.close()
    }

    func testAFactHasAKeyAnEndAndAMarkOfWhoWroteIt() async throws {
        let client = client()
        try begin(client, with: "context")
        client.addContext("Three items.", key: "cart", ttlS: 600)
        let fact = try await next("context.add")
        XCTAssertEqual(fact, ["text": "Three items.", "key": "cart", "ttlS": .number(600), "untrusted": false])
        client.close()
    }

    func testImagesGoWithWordsAndWithAResultIfTheServerTakesThem() async throws {
        let picture = Picture(mimeType: "image/png", data: Data([1, 2]))
        let images: JSON = [["mimeType": "image/png", "data": "AQI="]]
        for capability in ["images", "context"] {
            let client = client(["agent.status": { _, _ in .showing([picture], "seen") }])
            try begin(client, with: capability)
            try client.say("What is this?", images: [picture])
            let words = try await next(transcript)
            XCTAssertEqual(words["images"], images)
            try read("tool.call", by: client)
            let result = try await next("tool.result")
            XCTAssertEqual(result["result"], "seen")
            XCTAssertEqual(result["images"], capability == "images" ? images : nil)
            client.close()
        }
    }

    func testAFourthImageIsRefused() async throws {
        let four = Array(repeating: Picture(mimeType: "image/png", data: Data([1, 2])), count: 4)
        let client = client(["agent.status": { _, _ in .showing(four, "seen") }])
        try begin(client, with: "images")
        XCTAssertThrowsError(try client.say("What is this?", images: four))
        XCTAssertFalse(sent.contains { $0.type == transcript })
        try read("tool.call", by: client)
        let result = try await next("tool.result")
        XCTAssertEqual(result["error"], "There are 4 images; the most is 3.")
        client.close()
    }

    func testAPausedSpeechGoesOnOrEndsAtThePersonsWords() async throws {
        let (begun, silenced) = (expectation(description: "begun"), expectation(description: "silenced"))
        voice = {
            begun.fulfill()
            defer { silenced.fulfill() }
            try await Task.sleep(nanoseconds: 60_000_000_000)
        }
        let client = client()
        try begin(client, with: "pause")
        XCTAssertFalse(client.pause()) // nothing is spoken
        try read("tool.call.speak.segment", by: client)
        await fulfillment(of: [begun], timeout: 30)
        XCTAssertTrue(client.pause(spokenText: "Hel"))
        let pause = try await next("audio.output.paused")
        XCTAssertEqual(pause, ["speechId": "speech_1", "spokenText": "Hel"])
        try read("audio.output.resume", by: client)
        XCTAssertEqual(heard, ["spoken Hello.", "resumed"])
        XCTAssertTrue(client.pause())
        client.say("Stop.")
        try read("tool.call.append-user", by: client)
        await fulfillment(of: [silenced], timeout: 30)
        client.close()
    }

    func testAPausedSpeechGoesOnWhereTheNextConnectionIsWithoutPauses() async throws {
        let begun = expectation(description: "begun")
        voice = {
            begun.fulfill()
            try await Task.sleep(nanoseconds: 60_000_000_000)
        }
        let client = client()
        try begin(client, with: "pause")
        try read("tool.call.speak.segment", by: client)
        await fulfillment(of: [begun], timeout: 30)
        XCTAssertTrue(client.pause())
        client.lost(1006, "")
        try begin(client, with: "pause")
        XCTAssertEqual(heard, ["spoken Hello."])
        client.lost(1006, "")
        try begin(client, with: "context")
        XCTAssertEqual(heard, ["spoken Hello.", "resumed"])
        client.close()
    }

    func testAHandlerThatDoesNotHearItsCancellationHoldsNoLaterCall() async throws {
        let (begun, later) = (expectation(description: "begun"), expectation(description: "the later call"))
        let end = Once<Bool>()
        let client = client(["agent.status": { _, run in
            if run.callId == "call_1" {
                begun.fulfill()
                _ = await end.wait()
            } else {
                later.fulfill()
            }
            return "done"
        }])
        try begin(client, with: "cancel")
        try read("tool.call", by: client)
        await fulfillment(of: [begun], timeout: 30)
        try read("tool.cancel", by: client)
        try read("tool.call", by: client, changing: ("call_1", "call_2"))
        await fulfillment(of: [later], timeout: 30)
        end.settle(true)
        let cancelled = try await next("tool.cancelled")
        XCTAssertEqual(cancelled["effect"], "complete")
        client.close()
    }

    func testJSONKeepsItsNumbers() async throws {
        let text = #"{"a":[1,2.5,true,null,9007199254740993],"b":{"c":"é"}}"#
        let value = try JSON(parsing: text)
        XCTAssertEqual(value, ["a": [1, .number(2.5), true, .null, 9_007_199_254_740_993], "b": ["c": "é"]])
        XCTAssertEqual(try JSON(parsing: encoded(value)), value)
    }
}

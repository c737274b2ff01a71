// An app with one tool; scripts/run starts a server with the demo model.
import ConductorVoice
import Foundation

@main @MainActor struct Lamp {
    static func main() async throws {
        let environment = ProcessInfo.processInfo.environment
        var options = Options(url: URL(string: environment["CONDUCTOR_URL"] ?? "ws://127.0.0.1:8080/ws")!)
        options.token = environment["CONDUCTOR_TOKEN"]
        options.tools = [[
            "name": "lamp.switch",
            "description": "Switches the lamp of a room on or off.",
            "inputSchema": [
                "type": "object", "properties": ["room": ["type": "string"], "on": ["type": "boolean"]],
            ],
        ]]
        options.handlers = ["lamp.switch": { arguments, _ in .object(arguments) }]
        options.onState = { print("[\($0)]") }
        options.onFinal = { _ in exit(0) }
        options.speak = { print($0.text) }
        var client: Client?
        options.onApproval = { approval in
            print(approval.prompt)
            client?.decide(approval.approvalId, .allow()) // a real app shows a card
        }
        client = connect(options)
        client?.say("Switch on the lamp in the hall")
        try await Task.sleep(nanoseconds: 60_000_000_000)
    }
}

// An app with one tool; scripts/run starts a server with the demo model.
import ConductorVoice
import Foundation

@main @MainActor struct Lamp {
    static func main() async {
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
        options.onFinal = { print($0) } // a real app also has options.speak
        options.onError = { print($0.message) }
        var client: Client?
        options.onApproval = { approval in
            print(approval.prompt)
            client?.decide(approval.approvalId, .allow()) // a real app shows a card
        }
        client = connect(options)
        let reason = await client?.say("Switch on the lamp in the hall").value
        print("[the turn is over: \(reason ?? "")]")
        client?.close()
    }
}

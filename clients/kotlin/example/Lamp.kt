// An app with one tool; scripts/run starts a server with the demo model.
import conductor.voice.Client
import conductor.voice.Options
import conductor.voice.ToolHandler
import conductor.voice.connect
import kotlin.system.exitProcess
import kotlinx.coroutines.runBlocking
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.jsonObject

val tool = Json.parseToJsonElement(
    """{"name": "lamp.switch", "description": "Switches the lamp of a room on or off.", "inputSchema": {
        "type": "object", "properties": {"room": {"type": "string"}, "on": {"type": "boolean"}}}}""",
).jsonObject

fun main() {
    lateinit var client: Client
    val options = Options(
        url = System.getenv("CONDUCTOR_URL") ?: "ws://127.0.0.1:8080/ws",
        token = System.getenv("CONDUCTOR_TOKEN"),
        tools = listOf(tool),
        handlers = mapOf("lamp.switch" to ToolHandler { arguments, _ -> arguments }),
        onApproval = { approval ->
            println(approval.prompt)
            client.decide(approval.approvalId, "allow") // a real app shows a card
        },
        onState = { println("[$it]") },
        onFinal = { println(it) }, // a real app also has speak
        onError = { println(it.message) },
    )
    client = connect(options)
    val reason = runBlocking { client.say("Switch on the lamp in the hall").await() }
    println("[the turn is over: $reason]")
    client.close()
    exitProcess(0) // OkHttp's threads would live on
}

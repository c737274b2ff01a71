package conductor.voice

import java.io.File
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertTrue
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.ExperimentalCoroutinesApi
import kotlinx.coroutines.channels.Channel
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.withContext
import kotlinx.coroutines.withTimeout
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.jsonObject

/** A client without a connection reads the server's frames; what it sends is seen by `onEvent`. */
@OptIn(ExperimentalCoroutinesApi::class)
class GoldenTest {
    private val folder = File(javaClass.getResource("/session.started.json")!!.toURI()).parentFile
    private val lane = Dispatchers.Default.limitedParallelism(1)
    private val sent = Channel<Event>(Channel.UNLIMITED)
    private val heard = mutableListOf<String>()

    private fun client(vararg handlers: Pair<String, ToolHandler>) = Client(
        Options(
            url = "ws://127.0.0.1:1/ws",
            sessionId = "s-1",
            dispatcher = lane,
            handlers = mapOf(*handlers),
            onPartial = { heard += "partial $it" },
            onState = { heard += it },
            onApproval = { heard += "asked ${it.name} ${it.risk} ${it.scopes}" },
            onApprovalSettled = { heard += "settled $it" },
            onError = { heard += "error ${it.code} ${it.retryAfterMs}" },
            onEvent = { out, event -> if (out) sent.trySend(event) },
            speak = { heard += "spoken ${it.text} ${it.speechId} ${it.segment} ${it.last}" },
        ),
    )

    private var reads = 0

    /** Each time under a new id, as another event. */
    private fun Client.reads(name: String) {
        reads += 1
        val frame = File(folder, "$name.json").readText().replace("evt_00000000000000000000000000000001", "evt_$reads")
        runBlocking { withContext(lane) { read(frame) } }
    }

    private fun next(type: String) = runBlocking {
        withTimeout(5_000) {
            var event = sent.receive()
            while (event.type != type) event = sent.receive()
            event.payload
        }
    }

    @Test
    fun `every frame is an event, and none fails`() {
        val client = client()
        val files = folder.listFiles { file -> file.name.endsWith(".json") }!!
        assertTrue(files.size > 30)
        for (file in files.sorted()) {
            assertTrue(file.name.startsWith(Event(Json.parseToJsonElement(file.readText()).jsonObject).type))
            client.reads(file.name.removeSuffix(".json"))
        }
        client.close()
    }

    @Test
    fun `a call runs once, though it comes twice`() {
        var runs = 0
        val client = client("agent.status" to ToolHandler { _, run -> JsonPrimitive("run ${++runs} of ${run.callId}") })
        client.reads("session.started.resume")
        client.reads("tool.call")
        assertEquals("run 1 of call_1", next("tool.result").text("result"))
        client.reads("tool.call")
        assertEquals("run 1 of call_1", next("tool.result").text("result"))
        client.close()
    }

    @Test
    fun `a decision echoes the digest`() {
        val client = client()
        client.reads("session.started.resume")
        client.reads("approval.request")
        assertEquals("appr_1", next("approval.shown").text("approvalId"))
        client.decide("appr_1", "allow", scope = "always", words = "yes")
        val decision = next("approval.response")
        assertEquals("0".repeat(64), decision.text("argumentsDigest"))
        assertEquals("once", decision.text("scope")) // `always` was not offered
        assertEquals("yes", decision.text("message"))
        client.reads("approval.resolved")
        client.reads("tool.call.set-state")
        next("tool.result")
        assertEquals(listOf("asked notes.write high [once, session]", "settled appr_1"), heard.take(2))
        client.close()
    }

    @Test
    fun `a turn ends by its event, or with the client`() = runBlocking {
        val client = client()
        client.reads("session.started.resume")
        val (first, second) = client.say("hello") to client.say("again")
        reads += 1
        val id = sent.receiveCatching().getOrThrow().let { var event = it; while (event.type != TRANSCRIPT) event = sent.receive(); event.id }
        val frame = File(folder, "turn.ended.json").readText().replace("evt_00000000000000000000000000000001", "evt_$reads")
        withContext(lane) { client.read(frame.replace("ios-42", id)) }
        assertEquals("answered", withTimeout(5_000) { first.await() })
        client.close()
        assertEquals("closed", withTimeout(5_000) { second.await() })
        assertEquals("closed", withTimeout(5_000) { client.say("too late").await() })
    }

    @Test
    fun `what the app is told`() {
        val client = client()
        client.reads("session.started.resume")
        for (name in listOf("assistant.speech.partial", "error.all", "tool.call.speak", "tool.call.set-state")) client.reads(name)
        next("tool.result")
        next("tool.result")
        assertEquals("error rate_limited 1500", heard[1])
        assertTrue(heard[2].startsWith("spoken "))
        client.close()
    }
}

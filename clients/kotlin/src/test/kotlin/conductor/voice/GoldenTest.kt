package conductor.voice

import java.io.File
import kotlin.test.Test
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertFalse
import kotlin.test.assertTrue
import kotlinx.coroutines.CompletableDeferred
import kotlinx.coroutines.Deferred
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.ExperimentalCoroutinesApi
import kotlinx.coroutines.NonCancellable
import kotlinx.coroutines.awaitCancellation
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
    private var voice: suspend () -> Unit = {}

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
            onHints = { heard += "hints $it" },
            onUnfinished = { heard += "unfinished" },
            onResume = { heard += "resumed" },
            speak = {
                heard += "spoken ${it.text} ${it.speechId} ${it.segment} ${it.last}"
                voice()
            },
        ),
    )

    private var reads = 0

    /** Each time under a new id, as another event. */
    private fun Client.reads(name: String, old: String = "", new: String = "") {
        reads += 1
        val frame = File(folder, "$name.json").readText().replace("evt_00000000000000000000000000000001", "evt_$reads")
        val changed = if (old.isEmpty()) frame else frame.replace(old, new)
        runBlocking { withContext(lane) { read(changed) } }
    }

    /** The server accepts one more capability. */
    private fun Client.begins(capability: String) =
        reads("session.started.resume", "\"resume\",", "\"resume\",\"$capability\",")

    private fun Client.reconnects(capability: String) {
        runBlocking { withContext(lane) { lost(1006, "") } }
        begins(capability)
    }

    private fun next(type: String) = runBlocking {
        withTimeout(30_000) {
            var event = sent.receive()
            while (event.type != type) event = sent.receive()
            event.payload
        }
    }

    private fun <T> value(of: Deferred<T>) = runBlocking { withTimeout(30_000) { of.await() } }

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

    @Test
    fun `hints and half a sentence are told at once`() {
        val client = client()
        client.reads("stt.hints")
        client.reads("turn.hint")
        assertEquals(listOf("hints [yes, no, Café Zoë]", "unfinished"), heard)
        client.close()
    }

    @Test
    fun `a fact has a key, an end and a mark of who wrote it`() {
        val client = client()
        client.begins("context")
        client.addContext("Three items.", key = "cart", ttlS = 600.0)
        val fact = """{"text": "Three items.", "key": "cart", "ttlS": 600.0, "untrusted": false}"""
        assertEquals(Json.parseToJsonElement(fact), next("context.add"))
        client.close()
    }

    @Test
    fun `images go with words, and with a result if the server takes them`() {
        val picture = Picture("image/png", byteArrayOf(1, 2))
        val images = Json.parseToJsonElement("""[{"mimeType": "image/png", "data": "AQI="}]""")
        for (capability in listOf("images", "context")) {
            val client = client("agent.status" to ToolHandler { _, _ -> showing(listOf(picture), JsonPrimitive("seen")) })
            client.begins(capability)
            client.say("What is this?", images = listOf(picture))
            assertEquals(images, next(TRANSCRIPT)["images"])
            client.reads("tool.call")
            val result = next("tool.result")
            assertEquals("seen", result.text("result"))
            assertEquals(images.takeIf { capability == "images" }, result["images"])
            client.close()
        }
    }

    @Test
    fun `a fourth image is refused`() {
        val four = List(4) { Picture("image/png", byteArrayOf(1, 2)) }
        val client = client("agent.status" to ToolHandler { _, _ -> showing(four, JsonPrimitive("seen")) })
        client.begins("images")
        assertFailsWith<IllegalArgumentException> { client.say("What is this?", images = four) }
        client.reads("tool.call")
        assertEquals("There are 4 images; the most is 3.", next("tool.result").text("error"))
        client.close()
    }

    @Test
    fun `a paused speech goes on, or ends at the person's words`() {
        val begun = Channel<Unit>(Channel.UNLIMITED)
        val silenced = CompletableDeferred<Unit>()
        voice = {
            begun.send(Unit)
            try {
                awaitCancellation()
            } finally {
                silenced.complete(Unit)
            }
        }
        val client = client()
        client.begins("pause")
        assertFalse(value(client.pause())) // nothing is spoken
        client.reads("tool.call.speak.segment")
        runBlocking { withTimeout(30_000) { begun.receive() } }
        assertTrue(value(client.pause(spokenText = "Hel")))
        assertEquals("""{"speechId":"speech_1","spokenText":"Hel"}""", next("audio.output.paused").toString())
        client.reads("audio.output.resume")
        assertEquals("resumed", heard.last())
        assertFalse(silenced.isCompleted)
        assertTrue(value(client.pause()))
        client.say("Stop.")
        next(TRANSCRIPT)
        client.reads("tool.call.append-user")
        value(silenced)
        client.close()
    }

    @Test
    fun `a paused speech goes on where the next connection is without pauses`() {
        val begun = CompletableDeferred<Unit>()
        voice = {
            begun.complete(Unit)
            awaitCancellation()
        }
        val client = client()
        client.begins("pause")
        client.reads("tool.call.speak.segment")
        value(begun)
        assertTrue(value(client.pause()))
        client.reconnects("pause")
        assertFalse("resumed" in heard)
        client.reconnects("context")
        assertEquals("resumed", heard.last())
        client.close()
    }

    @Test
    fun `a handler that does not hear its cancellation holds no later call`() {
        val begun = CompletableDeferred<Unit>()
        val end = CompletableDeferred<Unit>()
        val client = client("agent.status" to ToolHandler { _, run ->
            if (run.callId == "call_1") withContext(NonCancellable) {
                begun.complete(Unit)
                end.await()
            }
            JsonPrimitive("done")
        })
        client.begins("cancel")
        client.reads("tool.call")
        value(begun)
        client.reads("tool.cancel")
        client.reads("tool.call", "call_1", "call_2")
        assertEquals("call_2", next("tool.result").text("callId"))
        end.complete(Unit)
        assertEquals("complete", next("tool.cancelled").text("effect"))
        client.close()
    }
}

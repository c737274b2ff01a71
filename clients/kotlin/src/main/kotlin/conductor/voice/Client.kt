package conductor.voice

import java.time.Instant
import java.util.UUID
import java.util.concurrent.TimeUnit
import kotlin.random.Random
import kotlinx.coroutines.*
import kotlinx.coroutines.channels.Channel
import kotlinx.serialization.json.*
import okhttp3.*

private val SERVED = listOf(
    "resume", "tools", "cancel", "lease", "late", "activity", "pause", "segments", "images", "turns", "context",
    "metrics", "goaway", "diagnostics",
)
private val FINAL_ERRORS = setOf("unauthorized", "unsupported_protocol_version", "session_mismatch")
// Events that no replay repeats.
private val PASSING = setOf(
    "assistant.speech.partial", "session.ping", "session.started", "session.goaway", "event.ack", "diagnostic",
    "turn.metrics", "turn.hint", "stt.hints",
)
private const val SUPERSEDED = 4409 // another connection serves the session: coming back would be a duel
private const val REMEMBERED = 2_000 // ids of events and calls
private const val START_MS = 10_000L
private const val STEADY_MS = 5_000 // only a connection that lasted resets the pauses
// A handshake's status in OkHttp's message: `Response.code` is a function in OkHttp 3 and a property since.
private val REFUSED = Regex("(?<=response but was ')40[13]")
private const val PING_S = 20L
private const val RETRY_MS = 1_000L
private const val TOOL_MS = 600_000L
private const val CANCEL_MS = 3_000L // for a cancelled handler, until later events no longer wait for it
private const val MAX_RESUME_BYTES = 32_768
private const val MAX_START_BYTES = 64_512 // the soft limit of an event less room for the envelope
private const val MAX_RESULT_BYTES = 1_044_480 // the server's hard limit of a frame less room for the envelope
private const val MAX_RESULT_CHARACTERS = 131_072
private const val MAX_CANCELLED_CHARACTERS = 8_192
private const val MAX_WORDS = 2_000
private const val NO_OBJECT = "The arguments are not a JSON object."

/** Connect, and stay connected until [Client.close]. */
fun connect(options: Options): Client = Client(options).apply { start() }

/** A voice app's side of one session. Its methods may be called from any thread. */
class Client internal constructor(private val options: Options) {
    val sessionId = options.sessionId

    /** The last state that `onState` reported. */
    @Volatile var state: String? = null
        private set

    private enum class Stage { QUEUED, BEGUN, TAKEN, CANCELLED, UNWANTED, DROPPED }

    private class Outcome(
        val result: String? = null,
        val error: String? = null,
        val cancelled: ToolCancelled? = null,
        val images: JsonArray? = null,
    )

    private inner class Run(val name: String) {
        var job: Job? = null
        var cancelled = false
        val outcome = CompletableDeferred<Outcome>()
        /** Later events may go on. */
        val passed = CompletableDeferred<Unit>()

        fun cancel() {
            cancelled = true
            job?.cancel()
            scope.launch {
                delay(CANCEL_MS)
                passed.complete(Unit)
            }
        }
    }

    /** A pause of the voice: the id of its event, and whether the person has said something since. */
    private class Pause(val eventId: String) {
        val over = CompletableDeferred<Unit>()
        var followed = false
    }

    private class Question(var request: JsonObject) {
        var answer: JsonObject? = null
        var answerId: String? = null
        var settled = false
    }

    private val scope = CoroutineScope(SupervisorJob() + options.dispatcher)
    private val http = options.http.newBuilder().pingInterval(PING_S, TimeUnit.SECONDS).build()
    private val listens =
        options.onHints != null || options.onUnfinished != null || options.holdUnfinishedMs != null
    private val capabilities = options.capabilities ?: (
        SERVED + listOfNotNull("approval".takeIf { options.onApproval != null }, "hints".takeIf { listens })
    )
    private var tools = options.tools
    private var handlers = options.handlers
    private var token = options.token
    private var accepted = setOf<String>()
    private var socket: WebSocket? = null
    private var number = 0 // of the socket
    private var live = false // the server has answered `session.start` on it
    private var startId = ""
    private var openedAt = 0L
    private var failures = 0 // the tries that failed, and the connections before them that did not last
    private var brief = 0 // connections in a row that did not last
    private var retry: Job? = null // the pause before the next try, if it may be cut short
    private var closed = false
    private var known = false // the server has answered this client
    private var reported = setOf<String>() // calls whose results are in the last `session.start`
    private val prefix = UUID.randomUUID().toString().take(13)
    private var count = 0
    private val seen = LinkedHashSet<String>()
    private var lastEventId: String? = null
    private val outbox = Outbox { entry ->
        tell { options.onUnsent(entry.event.payload.text("text").orEmpty()) }
        turnEnded(entry.event.id, "unsent")
    }
    private val turns = mutableMapOf<String, CompletableDeferred<String>>() // by the transcript's id
    private val calls = LinkedHashMap<String, Stage>()
    private val runs = mutableMapOf<String, Run>()
    private val questions = LinkedHashMap<String, Question>()
    private val inbox = Channel<Pair<Event, Int>>(Channel.UNLIMITED)
    // With segments speeches wait for each other, and only an `idle` for them.
    private var voice: Job = Job().apply { complete() }
    private var arrivals = 0
    private var silentTo = 0
    private var speaking: Triple<String, Job, CompletableDeferred<Unit>>? = null // its id, and its work and end
    private var pausing: Pause? = null
    private var replying = false // a partial or final came since the last message

    init {
        scope.launch { handleAll() }
    }

    internal fun start() = post { open() }

    /**
     * Send a final transcript. The value is the reason of `turn.ended`, which comes after the turn's last event; or
     * `unsent` (see `onUnsent`), `lost` with its session, or `closed`. It may be ignored.
     *
     * Throws [IllegalArgumentException] for more than three [images], and sends nothing.
     */
    fun say(text: String, lang: String? = null, images: List<Picture> = emptyList()): Deferred<String> {
        checkCount(images)
        val ended = CompletableDeferred<String>()
        post {
            val shown = images.map { it.json }.ifEmpty { null }
            val event = event(TRANSCRIPT, fields("text" to text, "lang" to lang, "images" to shown))
            pausing?.followed = true
            if (closed) ended.complete("closed") else turns[event.id] = ended
            keep(event)
            retry?.let {
                it.cancel()
                open()
            }
        }
        return ended
    }

    private fun turnEnded(eventId: String, reason: String) {
        turns.remove(eventId)?.complete(reason)
    }

    /** Send an interim transcript while the person speaks. */
    fun hearing(text: String) = send("user.audio.transcript.partial", fields("text" to text))

    /**
     * The person begins to speak over the speech: pause the voice if the value is true, else call [interrupt]. The voice
     * goes on at `onResume`, unless it is cancelled. [spokenText] or [playedMs] is the heard part.
     */
    fun pause(spokenText: String? = null, playedMs: Long? = null): Deferred<Boolean> {
        val taken = CompletableDeferred<Boolean>()
        post {
            val speech = speaking?.first?.takeIf { "pause" in accepted && !closed }
            if (speech != null && pausing == null) {
                val event = event(
                    PAUSED, fields("speechId" to speech, "spokenText" to spokenText, "playedMs" to playedMs))
                pausing = Pause(event.id)
                keep(event)
            }
            taken.complete(speech != null)
        }
        return taken
    }

    private fun endPause(): Boolean {
        val ended = pausing
        pausing = null
        ended?.over?.complete(Unit)
        return ended != null
    }

    private fun goOn() {
        if (endPause()) tell { options.onResume() }
    }

    private fun silence() {
        silentTo = arrivals
        endPause()
        speaking?.let { (_, job, ended) ->
            ended.complete(Unit)
            job.cancel()
        }
    }

    /** Barge in: stop the speech, queued speeches and the turn. [spokenText] or [playedMs] is the heard part. */
    fun interrupt(spokenText: String? = null, playedMs: Long? = null, reason: String = "user_speech") = post {
        // Before the speech ends, whose result would say that it was heard.
        keep(event(INTERRUPTED, fields("reason" to reason, "spokenText" to spokenText, "playedMs" to playedMs)))
        silence()
    }

    /**
     * Tell the model a fact without a turn. A fact with a [key] replaces the former one, and an empty text removes it. It ends
     * after [ttlS] seconds. [untrusted]: others have written it. The server takes at most 2,000 characters.
     */
    fun addContext(text: String, key: String? = null, ttlS: Double? = null, untrusted: Boolean = false) = post {
        keep(event(FACT, fields("text" to text, "key" to key, "ttlS" to ttlS, "untrusted" to untrusted)))
    }

    /** Stop the running turn, but not the speech, unless it is paused. */
    fun cancelResponse() = post {
        if (live && "cancel" in accepted) {
            write(event("response.cancel", fields()))
            if (pausing != null) silence() // the server cuts a paused speech
        }
    }

    /**
     * Decide a card: `allow`, `deny`, or `edit` with all of the [arguments]. [scope] is one of the request's; [words]
     * are the person's, for the model. A question that is settled is left alone.
     */
    fun decide(
        approvalId: String,
        decision: String,
        scope: String = "once",
        arguments: JsonObject? = null,
        words: String? = null,
    ) {
        require(decision in listOf("allow", "deny", "edit")) { "A decision is allow, deny or edit." }
        require(decision != "edit" || arguments != null) { "An edit needs all of the arguments." }
        post {
            questions[approvalId]?.takeIf { !it.settled && it.answer == null }?.let { question ->
                question.answer = fields(
                    "approvalId" to approvalId,
                    "argumentsDigest" to question.request["argumentsDigest"],
                    "decision" to decision,
                    "scope" to if (scope in question.request.texts("scopes")) scope else "once",
                    "editedArguments" to arguments.takeIf { decision == "edit" },
                    "message" to words?.take(MAX_WORDS),
                )
                answer(question)
            }
        }
    }

    /** Replace the declared tools and their handlers. */
    fun declare(tools: List<JsonObject>, handlers: Map<String, ToolHandler>) = post {
        this.tools = tools
        this.handlers = handlers
        write(event("session.update", fields("tools" to tools)))
    }

    /** Use a new token of the same person, also for later connections, after `session.goaway` with `token_expires`. */
    fun renew(token: String) = post {
        this.token = token
        write(event("session.update", fields("token" to token)))
    }

    /** Send any event once, if there is a connection. */
    fun send(type: String, payload: JsonObject) = post { write(event(type, payload)) }

    /** Close the connection and stop the handlers. The session goes on until the server ends it. */
    fun close() = post { if (!closed) end("The client was closed.") }

    // The connection

    private fun open() {
        retry = null
        number += 1
        openedAt = System.currentTimeMillis()
        val mine = number
        val request = try {
            Request.Builder().url(options.url).header("Sec-WebSocket-Protocol", "conductor.v1")
        } catch (error: IllegalArgumentException) {
            return end(error.message.orEmpty()) // no address: a retry is pointless
        }
        token?.let { request.header("Authorization", "Bearer $it") }
        fun on(act: () -> Unit) = post { if (mine == number && socket != null) act() }
        socket = http.newWebSocket(request.build(), object : WebSocketListener() {
            override fun onOpen(webSocket: WebSocket, response: Response) = on { begin() }

            override fun onMessage(webSocket: WebSocket, text: String) = on { read(text) }

            override fun onClosing(webSocket: WebSocket, code: Int, reason: String) {
                webSocket.close(1000, null)
                on { lost(code, reason) }
            }

            override fun onFailure(webSocket: WebSocket, t: Throwable, response: Response?) =
                on { REFUSED.find(t.message.orEmpty())?.let { refused(it.value) } ?: lost(1006, t.message.orEmpty()) }
        })
        later(START_MS) { if (mine == number && socket != null && !live) drop("The server does not answer.") }
    }

    private fun drop(reason: String, retryAfterMs: Long = 0) {
        socket?.cancel()
        lost(1006, reason, retryAfterMs)
    }

    internal fun lost(code: Int, reason: String, retryAfterMs: Long = 0) {
        if (live) {
            failures = if (System.currentTimeMillis() - openedAt >= STEADY_MS) 0 else brief
            brief = failures + 1
        }
        socket = null
        live = false
        if (code == SUPERSEDED) return end("Another connection serves the session.")
        val grown = options.firstPauseMs shl failures.coerceAtMost(20)
        val pause = maxOf(grown, retryAfterMs).coerceAtMost(options.longestPauseMs)
        failures += 1
        tell { options.onConnection("connecting", "$reason ($code)") }
        val next = later((pause * (1 - Random.nextDouble() / 2)).toLong()) { open() }
        retry = next.takeIf { retryAfterMs == 0L } // a time that the server named counts
    }

    /** The server does not accept the token: another try is pointless. */
    private fun refused(status: String) {
        val message = "The server answered HTTP $status: the token is missing or not accepted."
        tell { options.onError(ServerError("unauthorized", message, null)) }
        end(message)
    }

    private fun end(reason: String) {
        closed = true
        socket?.close(1000, null)
        socket = null
        live = false
        questions.values.forEach(::settle)
        turns.keys.toList().forEach { turnEnded(it, "closed") }
        scope.coroutineContext.cancelChildren() // handlers, the speech, and queued calls
        tell { options.onConnection("closed", reason) }
    }

    private fun later(ms: Long, act: () -> Unit): Job = scope.launch {
        delay(ms)
        act()
    }

    private fun post(act: suspend () -> Unit) {
        scope.launch { act() }
    }

    private fun begin() {
        outbox.expire(pauseId = pausing?.eventId)
        val start = fields(
            "sessionId" to sessionId,
            "locale" to options.locale,
            "lang" to options.lang,
            "timeZone" to options.timeZone,
            "model" to options.model,
            "instructions" to options.instructions,
            "variables" to options.variables?.let { JsonObject(it.mapValues { (_, value) -> json(value) }) },
            "greeting" to options.greeting,
            "capabilities" to capabilities,
            "tools" to tools,
            "holdUnfinishedMs" to options.holdUnfinishedMs,
        )
        val resume = if (known && "resume" in capabilities) resume(MAX_START_BYTES - bytes(start)) else null
        val event = event("session.start", JsonObject(start + fields("resume" to resume)))
        startId = event.id
        transmit(event)
    }

    /** Results and pending calls, in [room] bytes. The server requests or repeats the others. */
    private fun resume(room: Int): JsonObject {
        var left = minOf(room, MAX_RESUME_BYTES) - 256
        val pending = calls.filterValues { it == Stage.QUEUED || it == Stage.BEGUN }.keys.take(MAX_RESUMED).takeWhile {
            left -= bytes(it) + 3
            left >= 0
        }
        val done = outbox.done(left)
        reported = done.filter { "result" in it || "error" in it }.mapNotNull { it.text("callId") }.toSet()
        return fields("lastEventId" to lastEventId, "done" to done, "pending" to pending)
    }

    private fun welcome(payload: JsonObject) {
        val unwanted = payload.texts("drop").toSet()
        known = true
        live = true
        accepted = payload.texts("capabilities").toSet()
        val gone = !payload.flag("resumed")
        if (gone || "pause" !in accepted) goOn() // the server knows of no pause
        outbox.expire(gone, pausing?.eventId)
        if (gone) {
            turns.keys.filter { outbox.find(it) == null }.forEach { turnEnded(it, "lost") }
            questions.values.forEach(::settle)
        }
        for (callId in unwanted) {
            calls[callId] = Stage.DROPPED
            runs[callId]?.takeIf { readsOnly(it.name) }?.cancel()
        }
        // Results in `session.start` were recorded before this answer.
        outbox.forget(unwanted + (reported - payload.texts("resend").toSet()))
        reported = emptySet()
        tell { options.onConnection("open", "") }
        flush()
        questions.values.filter { it.answer == null && !it.settled }.forEach(::shown)
    }

    // Sending

    private fun event(type: String, payload: JsonObject): Event {
        count += 1
        return Event(fields("id" to "$prefix-$count", "type" to type, "timestamp" to Instant.now().toString(),
            "sessionId" to sessionId, "protocolVersion" to 1, "payload" to payload))
    }

    private fun write(event: Event) {
        if (live) transmit(event)
    }

    private fun transmit(event: Event) {
        socket?.send(event.frame.toString())
        tell { options.onEvent(true, event) }
    }

    /** Send an event until it is acknowledged. [shown]: it answers a UI call. */
    private fun keep(event: Event, shown: Boolean = false) {
        if (closed) return
        outbox.add(event, shown)
        flush()
    }

    private fun flush() {
        if (!live) return
        for (entry in outbox.entries.filter { it.sentOn != number }) {
            entry.sentOn = number
            transmit(entry.event)
        }
    }

    // Reading

    internal fun read(text: String) {
        val frame = try {
            Json.parseToJsonElement(text) as? JsonObject ?: return
        } catch (_: IllegalArgumentException) {
            return
        }
        val event = Event(frame)
        if (event.id.isEmpty()) return
        tell { options.onEvent(false, event) }
        if (!remember(seen, event.id)) return
        arrivals += 1
        notice(event.type, event.payload)
        if (event.type == "assistant.speech.partial" || event.type !in PASSING) inbox.trySend(event to arrivals)
    }

    /** What must not wait for the events before it. */
    private fun notice(type: String, payload: JsonObject) {
        val callId = payload.text("callId").orEmpty()
        when (type) {
            "session.started" -> if (!live) welcome(payload)
            "event.ack" -> outbox.acknowledged(payload.texts("eventIds"))
            "error" -> failed(payload)
            "tool.call" -> {
                if (isOurs(payload) && callId !in calls) calls[callId] = Stage.QUEUED
                // The person's words are taken: they have interrupted the paused speech.
                if (pausing?.followed == true && isWordsOfPerson(payload)) silence()
            }
            "audio.output.resume" -> goOn()
            "tool.cancel" -> when (calls[callId]) {
                Stage.BEGUN -> runs[callId]?.cancel()
                Stage.QUEUED -> cancelled(callId, "none")
                null -> stage(callId, Stage.UNWANTED) // an event that waits may bring it yet
                else -> {}
            }
            "approval.request" -> asked(payload)
            "approval.resolved" -> resolved(payload)
            "stt.hints" -> tell { options.onHints?.invoke(payload.texts("phrases")) }
            "turn.hint" -> if (payload["complete"] == JsonPrimitive(false)) tell { options.onUnfinished?.invoke() }
        }
    }

    private fun isWordsOfPerson(payload: JsonObject) = payload.text("name") == "convo.appendMessage" &&
        parsed(payload.text("arguments"))?.text("role") == "user"

    private fun failed(payload: JsonObject) {
        val error = serverError(payload)
        val entry = outbox.find(payload.text("eventId"))
        if (payload.text("eventId") == startId && !live) {
            if (error.code in FINAL_ERRORS) end("${error.message} (${error.code})")
            else if (error.code != "store_unavailable") drop(error.message, error.retryAfterMs ?: 0)
            // else the server tries again itself
        } else if (entry != null && (entry.transcript || error.code == "invalid_event")) outbox.giveUp { it === entry }
        else if (entry != null && error.code == "store_unavailable") later(RETRY_MS) {
            if (entry in outbox.entries) {
                entry.event = event(entry.event.type, entry.event.payload)
                entry.sentOn = null
                flush()
            }
        }
    }

    private suspend fun handleAll() {
        for ((event, number) in inbox) {
            try {
                handle(event, number)
            } catch (error: Exception) {
                currentCoroutineContext().ensureActive()
                error.printStackTrace()
            }
            if (event.type !in PASSING) lastEventId = event.id
        }
    }

    private suspend fun handle(event: Event, number: Int) {
        val payload = event.payload
        val arguments = if (event.type == "tool.call") parsed(payload.text("arguments")) else null
        when (event.type) {
            "assistant.speech.partial", "assistant.speech.final" -> {
                replying = true
                val hook = if (event.type == "assistant.speech.partial") options.onPartial else options.onFinal
                tell { hook(payload.text("text").orEmpty()) }
            }
            "error" -> tell { options.onError(serverError(payload)) }
            "turn.ended" -> turnEnded(payload.text("eventId").orEmpty(), payload.text("reason").orEmpty())
            "tool.call" -> if (payload.text("name") == "tts.speak" && "segments" in accepted) {
                val before = voice
                voice = scope.launch {
                    before.join()
                    show(payload, arguments, number)
                }
            } else if (isUiCall(payload.text("name").orEmpty())) show(payload, arguments, number)
            else if (isOurs(payload)) run(payload.text("callId").orEmpty(), payload.text("name").orEmpty(), arguments)
        }
    }

    // UI calls

    private suspend fun show(payload: JsonObject, arguments: JsonObject?, number: Int) {
        val callId = payload.text("callId").orEmpty()
        val name = payload.text("name").orEmpty()
        if (arguments?.text("state") == "idle") voice.join()
        val answer = try {
            requireNotNull(arguments) { NO_OBJECT }
            if (name == "tts.speak") speak(arguments, number, callId) else draw(name, arguments, callId)
            result(callId, if (name == "tts.speak") """{"spoken":true}""" else """{"ok":true}""", null)
        } catch (error: Exception) {
            currentCoroutineContext().ensureActive() // a handler's own time limit is no cancellation
            result(callId, null, error.message ?: "It failed.")
        }
        keep(event("tool.result", answer), shown = true)
    }

    private suspend fun draw(name: String, arguments: JsonObject, callId: String) {
        if (name == "convo.setState") {
            state = arguments.text("state")
            tell { options.onState(arguments.text("state").orEmpty()) }
        }
        if (name == "convo.appendMessage") {
            val question = arguments.text("role") == "assistant" && !replying
            if (question) tell { options.onQuestion(arguments.text("text").orEmpty()) }
            replying = false
        }
        handlers[name]?.run(arguments, ToolRun(callId, name) { _, _ -> })
    }

    private suspend fun speak(arguments: JsonObject, number: Int, callId: String) {
        pausing?.over?.await() // the speech before it ended while it was paused
        if (number <= silentTo) return
        val text = arguments.text("text").orEmpty()
        val speech = Speech(
            text, arguments.text("lang"), arguments.text("speechId"), arguments.number("segment"), arguments.flag("last"),
        )
        // A voice that does not hear the cancellation must not hold the events that follow.
        val ended = CompletableDeferred<Unit>()
        val job = scope.launch {
            try {
                options.speak(speech)
                ended.complete(Unit)
            } catch (error: Exception) {
                ended.completeExceptionally(IllegalStateException(error.message))
            }
        }
        speaking = Triple(speech.speechId ?: callId, job, ended)
        try {
            ended.await()
        } finally {
            speaking = null
        }
    }

    // Tools

    private suspend fun run(callId: String, name: String, arguments: JsonObject?) {
        when (calls[callId]) {
            Stage.UNWANTED -> return cancelled(callId, "none")
            Stage.QUEUED -> {}
            else -> return resend(callId)
        }
        if (arguments == null) return finish(callId, Outcome(error = NO_OBJECT))
        val handler = handlers[name] ?: return finish(callId, Outcome(error = "This device has no tool $name."))
        val run = Run(name)
        runs[callId] = run
        stage(callId, Stage.BEGUN)
        call(callId, run, handler, arguments)
        // A handler that does not hear the cancellation must not hold the events that follow.
        scope.launch(start = CoroutineStart.UNDISPATCHED) {
            report(callId, run)
            run.passed.complete(Unit)
        }
        run.passed.await()
    }

    private suspend fun report(callId: String, run: Run) {
        val outcome = withTimeoutOrNull(TOOL_MS) { run.outcome.await() }
        runs -= callId
        run.job?.cancel()
        when {
            calls[callId] == Stage.DROPPED -> {}
            outcome == null -> finish(callId, Outcome(error = "The device's tool did not end in time."))
            !run.cancelled -> finish(callId, outcome)
            outcome.cancelled != null -> cancelled(callId, outcome.cancelled.effect, outcome.cancelled.result)
            // It ended in spite of the cancellation.
            outcome.result != null -> cancelled(callId, "complete", outcome.result)
            // Without the handler's word, the worst case.
            else -> cancelled(callId, if (readsOnly(run.name)) "none" else "partial")
        }
    }

    private fun call(callId: String, run: Run, handler: ToolHandler, arguments: JsonObject) {
        fun lease(type: String, payload: JsonObject) {
            if ("lease" in accepted && callId in runs) write(event(type, payload))
        }
        lease("tool.started", fields("callId" to callId))
        val toolRun = ToolRun(callId, run.name) { message, percent ->
            post { lease("tool.progress", fields("callId" to callId, "message" to message, "percent" to percent)) }
        }
        run.job = scope.launch(start = CoroutineStart.UNDISPATCHED) {
            run.outcome.complete(try {
                val value = handler.run(arguments, toolRun)
                val images = imagesOf(value)
                val result = if (images == null) value else (value as JsonObject)["result"] ?: JsonNull
                Outcome(result = asText(result), images = images)
            } catch (error: ToolCancelled) {
                Outcome(error = error.message, cancelled = error)
            } catch (error: Exception) {
                Outcome(error = error.message ?: "The tool failed.")
            })
        }
    }

    private fun finish(callId: String, outcome: Outcome) {
        val full = result(callId, outcome.result, outcome.error)
        val whole = if (bytes(full) <= MAX_RESULT_BYTES) full else result(
            callId, shortened(outcome.result, MAX_RESULT_CHARACTERS), shortened(outcome.error, MAX_RESULT_CHARACTERS),
        )
        val images = outcome.images?.takeIf { "images" in accepted && it.isNotEmpty() }
        stage(callId, Stage.TAKEN)
        keep(event("tool.result", if (images == null) whole else JsonObject(whole + ("images" to images))))
    }

    private fun cancelled(callId: String, effect: String, result: String? = null) {
        stage(callId, Stage.CANCELLED)
        val short = shortened(result, MAX_CANCELLED_CHARACTERS)
        keep(event("tool.cancelled", fields("callId" to callId, "effect" to effect, "result" to short)))
    }

    /** A replay under a new id: it is not run again, but its answer may have been lost. */
    private fun resend(callId: String) {
        outbox.result(callId)?.sentOn = null
        flush()
    }

    private fun stage(callId: String, stage: Stage) {
        calls -= callId
        calls[callId] = stage
        if (calls.size > REMEMBERED) calls -= calls.keys.first()
    }

    private fun readsOnly(name: String): Boolean {
        val hints = tools.find { it.text("name") == name }?.get("annotations") as? JsonObject
        return hints?.flag("readOnlyHint") ?: false
    }

    // Approvals

    private fun asked(request: JsonObject) {
        val approvalId = request.text("approvalId").orEmpty()
        val known = questions[approvalId]
        if (known?.request?.text("argumentsDigest") == request.text("argumentsDigest")) {
            if (known?.answer != null && !known.settled && outbox.find(known.answerId) == null) answer(known)
            return
        }
        known?.let(::settle) // other arguments: the decision does not apply
        questions[approvalId] = Question(request)
        if (questions.size > MAX_RESUMED) questions -= questions.keys.first()
        ask(questions.getValue(approvalId))
    }

    private fun ask(question: Question, refused: String? = null) {
        tell { options.onApproval?.invoke(Approval(question.request, refused)) }
        shown(question)
    }

    /** A yes by voice counts only after this: the person must be able to see the card. */
    private fun shown(question: Question) {
        if (options.onApproval == null) return
        write(event("approval.shown", fields("approvalId" to question.request["approvalId"])))
    }

    private fun answer(question: Question) {
        val event = event("approval.response", question.answer ?: return)
        question.answerId = event.id
        keep(event)
    }

    private fun resolved(payload: JsonObject) {
        val question = questions[payload.text("approvalId")]?.takeIf { !it.settled } ?: return
        val edited = question.answer?.text("decision") == "edit"
        if (payload.text("outcome") != "refused" || !edited) return settle(question)
        question.answer = null
        ask(question, payload.text("message") ?: "It was refused.")
    }

    /** It stays known, so that a replay does not ask it again. */
    private fun settle(question: Question) {
        if (question.settled) return
        question.settled = true
        tell { options.onApprovalSettled(question.request.text("approvalId").orEmpty()) }
    }
}

/** A hook that fails must not end the client. */
private inline fun tell(act: () -> Unit) = try {
    act()
} catch (error: Exception) {
    error.printStackTrace()
}

private fun isOurs(call: JsonObject) = call.text("name").orEmpty().let { !isUiCall(it) && !it.startsWith("bridge.") }

private fun serverError(payload: JsonObject) =
    ServerError(payload.text("code").orEmpty(), payload.text("message").orEmpty(), payload.number("retryAfterMs"))

private fun isUiCall(name: String) = name.startsWith("convo.") || name.startsWith("tts.")

private fun result(callId: String, result: String?, error: String?) =
    JsonObject(mapOf("callId" to json(callId), "result" to json(result), "error" to json(error)))

private fun asText(value: JsonElement) = if (value is JsonPrimitive && value.isString) value.content else value.toString()

private fun parsed(text: String?): JsonObject? = try {
    Json.parseToJsonElement(text.orEmpty().ifEmpty { "{}" }) as? JsonObject
} catch (_: IllegalArgumentException) {
    null
}

private fun remember(ids: LinkedHashSet<String>, id: String): Boolean {
    val fresh = ids.add(id)
    if (ids.size > REMEMBERED) ids.remove(ids.first())
    return fresh
}

private fun shortened(text: String?, most: Int): String? {
    if (text == null || text.length <= most) return text
    return "${text.take(most)}… [${text.length - most} characters left out by the device]"
}

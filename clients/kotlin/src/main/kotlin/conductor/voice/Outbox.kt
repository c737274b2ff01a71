package conductor.voice

import kotlinx.serialization.json.*

/** One frame of the protocol (docs/protocol.md). */
class Event(val frame: JsonObject) {
    val id = frame.text("id").orEmpty()
    val type = frame.text("type").orEmpty()
    val payload = frame["payload"] as? JsonObject ?: JsonObject(emptyMap())
}

internal const val TRANSCRIPT = "user.audio.transcript.final"
internal const val MAX_RESUMED = 256
internal const val INTERRUPTED = "audio.output.interrupted"
internal const val PAUSED = "audio.output.paused"
internal const val FACT = "context.add"
private const val KEPT = 128
private const val UNSENT_TRANSCRIPTS = 8
private const val TRANSCRIPT_MS = 60_000 // the person has moved on: an older transcript is not sent again
private const val INTERRUPTION_MS = 10_000 // the server repeats no older speech

internal fun JsonObject.text(name: String) = (this[name] as? JsonPrimitive)?.takeIf { it.isString }?.content
internal fun JsonObject.number(name: String) = (this[name] as? JsonPrimitive)?.longOrNull
internal fun JsonObject.flag(name: String) = (this[name] as? JsonPrimitive)?.booleanOrNull ?: false
internal fun JsonObject.texts(name: String) =
    (this[name] as? JsonArray).orEmpty().filterIsInstance<JsonPrimitive>().filter { it.isString }.map { it.content }

/** A JSON object without the fields that are null. */
internal fun fields(vararg fields: Pair<String, Any?>) =
    JsonObject(fields.mapNotNull { (name, value) -> value?.let { name to json(it) } }.toMap())

internal fun json(value: Any?): JsonElement = when (value) {
    null -> JsonNull
    is JsonElement -> value
    is Number -> JsonPrimitive(value)
    is Boolean -> JsonPrimitive(value)
    is Collection<*> -> JsonArray(value.map(::json))
    else -> JsonPrimitive(value.toString())
}

internal fun bytes(value: Any) = value.toString().encodeToByteArray().size

/**
 * Events in order, oldest first, that the server has not acknowledged. They are sent again on each new
 * connection under their original ids: the server takes an id once.
 */
internal class Outbox(private val unsent: (Entry) -> Unit) {
    /** [shown]: it answers a UI call. [sentOn] is the number of its last connection. */
    class Entry(var event: Event, val shown: Boolean, var sentOn: Int? = null) {
        val at = System.currentTimeMillis()
        val transcript = event.type == TRANSCRIPT
    }

    var entries = listOf<Entry>()
        private set

    fun find(id: String?) = entries.find { it.event.id == id }

    fun result(callId: String) =
        entries.find { it.event.type == "tool.result" && it.event.payload.text("callId") == callId }

    fun add(event: Event, shown: Boolean) {
        entries = entries + Entry(event, shown)
        val early = entries.filter { it.transcript && it.sentOn == null }
        if (early.size > UNSENT_TRANSCRIPTS) giveUp { it === early.first() }
        if (entries.size > KEPT) giveUp { it === entries.first() }
    }

    fun acknowledged(ids: List<String>) {
        entries = entries.filter { it.event.id !in ids }
    }

    fun forget(callIds: Set<String>) {
        entries = entries.filter { it.event.type != "tool.result" || it.event.payload.text("callId") !in callIds }
    }

    /**
     * Drop events that are too old to be sent again (a pause: once it has ended), and after the loss of a session all but
     * transcripts and facts.
     */
    fun expire(gone: Boolean = false, pauseId: String? = null) = giveUp {
        val age = System.currentTimeMillis() - it.at
        when (it.event.type) {
            TRANSCRIPT -> age >= TRANSCRIPT_MS
            PAUSED -> gone || it.event.id != pauseId
            FACT -> false
            else -> gone || (it.event.type == INTERRUPTED && age >= INTERRUPTION_MS)
        }
    }

    fun giveUp(which: (Entry) -> Boolean) {
        val (left, kept) = entries.partition(which)
        entries = kept
        left.filter { it.transcript }.forEach(unsent)
    }

    /** The results for `session.start`, in [room] bytes: content that does not fit is asked for. */
    fun done(room: Int): List<JsonObject> {
        var left = room
        return entries.filter { it.event.type == "tool.result" && !it.shown }.take(MAX_RESUMED).map { entry ->
            val payload = entry.event.payload
            val full = JsonObject(payload - if (payload["error"] is JsonNull) "error" else "result")
            val one = if ("images" !in payload && bytes(full) < left) full else fields("callId" to payload["callId"])
            left -= bytes(one) + 1
            one
        }
    }
}

package conductor.voice

import java.util.Locale
import java.util.TimeZone
import java.util.UUID
import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.ExperimentalCoroutinesApi
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonObject
import okhttp3.OkHttpClient

/**
 * The address, the device's abilities, and the app's callbacks.
 *
 * Hooks and handlers run on [dispatcher], one at a time: `Dispatchers.Main` suits an app.
 */
@OptIn(ExperimentalCoroutinesApi::class) // limitedParallelism, before kotlinx.coroutines 1.9
class Options(
    /** `wss://HOST/ws` */
    val url: String,
    val token: String? = null,
    /** The same id resumes a session. */
    val sessionId: String = "kt-${UUID.randomUUID()}",
    val model: String? = null,
    val locale: String = Locale.getDefault().toLanguageTag(),
    /** The person's language (BCP 47), in which questions are spoken. Default: the locale's. */
    val lang: String? = null,
    val timeZone: String = TimeZone.getDefault().id,
    /** Added to the system prompt; at most 4 KiB. */
    val instructions: String? = null,
    /** The values of all `{{name}}` in the server's system prompt, each of at most 200 characters. */
    val variables: Map<String, String>? = null,
    /** Spoken first in a new session, without the model. */
    val greeting: String? = null,
    /** Declarations as in docs/protocol-reference.md, "Tool declarations". */
    val tools: List<JsonObject> = emptyList(),
    /** By the tool's name; `convo.*` may be handled, too. */
    val handlers: Map<String, ToolHandler> = emptyMap(),
    /** The reply so far, to be drawn in place of the one before. */
    val onPartial: (String) -> Unit = {},
    /** A reply that is whole. */
    val onFinal: (String) -> Unit = {},
    /** `idle`, `listening`, `transcribing`, `thinking` or `speaking`. */
    val onState: (String) -> Unit = {},
    /** A question or an apology that is no reply of the model; it is spoken, too. */
    val onQuestion: (String) -> Unit = {},
    /** Show a card whose buttons call [Client.decide]. Without it questions are spoken. */
    val onApproval: ((Approval) -> Unit)? = null,
    /** Take the card away: the question is settled. */
    val onApprovalSettled: (approvalId: String) -> Unit = {},
    val onError: (ServerError) -> Unit = {},
    /** A transcript that the server did not take and that is not sent again. */
    val onUnsent: (String) -> Unit = {},
    /** `connecting`, `open` or `closed`, and why it is not open. */
    val onConnection: (state: String, reason: String) -> Unit = { _, _ -> },
    /** Every frame that is sent or read, including duplicates. */
    val onEvent: (sent: Boolean, event: Event) -> Unit = { _, _ -> },
    /** Words to listen for, the likeliest first: `RecognizerIntent.EXTRA_BIASING_STRINGS` of the next recognition. */
    val onHints: ((phrases: List<String>) -> Unit)? = null,
    /** The transcript is half a sentence: the server waits for the other half, so listen on. */
    val onUnfinished: (() -> Unit)? = null,
    /** How long half a sentence waits for the other half; 0 is not at all. Default: the operator's. */
    val holdUnfinishedMs: Int? = null,
    /** Say a text and return at its end; it is cancelled to stop it. */
    val speak: suspend (Speech) -> Unit = {},
    /** Let the paused voice go on where it was: the person has not interrupted it. */
    val onResume: () -> Unit = {},
    /** Names of protocol extensions; default: all that the library serves. */
    val capabilities: List<String>? = null,
    val firstPauseMs: Long = 500,
    val longestPauseMs: Long = 15_000,
    val dispatcher: CoroutineDispatcher = Dispatchers.Default.limitedParallelism(1),
    val http: OkHttpClient = OkHttpClient(),
)

/** Runs a call, and is cancelled with it. It returns a text, any JSON value, or [showing] images; an exception is its error. */
fun interface ToolHandler {
    suspend fun run(arguments: JsonObject, run: ToolRun): JsonElement
}

class ToolRun internal constructor(
    val callId: String,
    val name: String,
    private val report: (message: String?, percent: Double?) -> Unit,
) {
    /** Tell that the call goes on: its time limit starts again. */
    fun progress(message: String? = null, percent: Double? = null) = report(message, percent)
}

/** Thrown by a handler that was cancelled: [effect] is `none`, `partial` or `complete`. */
class ToolCancelled(val effect: String, val result: String? = null) : Exception("cancelled: $effect")

/**
 * A text, and its language [lang] (BCP 47), without it the locale's. With `segments` it is a part of the reply [speechId]: its
 * number, and whether it is the last.
 */
class Speech(val text: String, val lang: String?, val speechId: String?, val segment: Long?, val last: Boolean)

/** What a person is asked. Show its texts as text. [refused] says why the last edit was refused. */
class Approval(request: JsonObject, val refused: String? = null) {
    val approvalId = request.text("approvalId").orEmpty()
    val batchId = request.text("batchId").orEmpty()
    val callId = request.text("callId").orEmpty()
    val name = request.text("name").orEmpty()
    val arguments = request["arguments"] as? JsonObject ?: JsonObject(emptyMap())
    val argumentsDigest = request.text("argumentsDigest").orEmpty()
    val risk = request.text("risk").orEmpty()
    val reasons = request.texts("reasons")
    val prompt = request.text("prompt").orEmpty()
    val scopes = request.texts("scopes")
    val expiresAt = request.text("expiresAt").orEmpty()
    val preview = request.text("preview")

    /** The headline, if the tool has a template or a title. */
    val title = request.text("title")
}

class ServerError(val code: String, val message: String, val retryAfterMs: Long?)

package conductor.voice

import java.util.Base64
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.JsonObject

/**
 * An image for a model that sees: [data] is a file of JPEG, PNG or WebP, at most 786,432 bytes.
 *
 * Scale it to 1,568 pixels first, with the platform's API (docs/clients/kotlin.md).
 */
class Picture(val mimeType: String, val data: ByteArray) {
    internal val json: JsonObject
        get() = fields("mimeType" to mimeType, "data" to Base64.getEncoder().encodeToString(data))
}

/** What a handler returns with images: at most three, else it throws [IllegalArgumentException], the call's error. */
fun showing(images: List<Picture>, result: JsonElement = JsonNull): JsonElement =
    JsonObject(mapOf("result" to result, "images" to JsonArray(images.map { it.json })))

private const val MAX_IMAGES = 3 // of a result or transcript: more would not fit into a frame

internal fun checkCount(images: List<*>) =
    require(images.size <= MAX_IMAGES) { "There are ${images.size} images; the most is $MAX_IMAGES." }

/** The images of a handler's value; null for any other value. Throws [IllegalArgumentException] for more than three. */
internal fun imagesOf(value: JsonElement): JsonArray? {
    val fields = value as? JsonObject ?: return null
    val images = (fields["images"] as? JsonArray)?.takeIf { (fields.keys - "images" - "result").isEmpty() }
    return images?.also(::checkCount)
}

import Foundation
#if canImport(ImageIO)
import ImageIO
#endif

/// An image for a model that sees: JPEG, PNG or WebP, at most 786,432 bytes.
public struct Picture: Equatable, Sendable {
    public let mimeType: String
    public let data: Data

    public init(mimeType: String, data: Data) {
        self.mimeType = mimeType
        self.data = data
    }

    #if canImport(ImageIO)
    /// Scale an image of any format to 1,568 pixels, and encode it as JPEG; nil if it cannot be read.
    public init?(scaling image: Data) {
        let options: [CFString: Any] = [
            kCGImageSourceCreateThumbnailFromImageAlways: true,
            kCGImageSourceCreateThumbnailWithTransform: true,
            kCGImageSourceThumbnailMaxPixelSize: 1_568,
        ]
        guard let source = CGImageSourceCreateWithData(image as CFData, nil),
              let scaled = CGImageSourceCreateThumbnailAtIndex(source, 0, options as CFDictionary) else { return nil }
        for quality in [0.85, 0.6, 0.3] {
            let encoded = NSMutableData()
            let target = CGImageDestinationCreateWithData(encoded, "public.jpeg" as CFString, 1, nil)
            guard let target else { return nil }
            let properties: [CFString: Any] = [kCGImageDestinationLossyCompressionQuality: quality]
            CGImageDestinationAddImage(target, scaled, properties as CFDictionary)
            guard CGImageDestinationFinalize(target) else { return nil }
            if encoded.length <= maxImageBytes {
                self.init(mimeType: "image/jpeg", data: encoded as Data)
                return
            }
        }
        return nil
    }
    #endif

    var json: JSON { .object(["mimeType": .string(mimeType), "data": .string(data.base64EncodedString())]) }
}

private let maxImageBytes = 786_432
private let maxImages = 3 // of a result or transcript: more would not fit into a frame

/// More images than a result or a transcript may have.
public struct TooManyPictures: LocalizedError, Sendable {
    public let count: Int

    public var errorDescription: String? { "There are \(count) images; the most is \(maxImages)." }
}

func checkCount<Image>(of images: [Image]) throws {
    if images.count > maxImages { throw TooManyPictures(count: images.count) }
}

extension JSON {
    /// What a handler returns with images: at most three, else its call ends with an error.
    public static func showing(_ images: [Picture], _ result: JSON = .null) -> JSON {
        .object(["result": result, "images": .array(images.map(\.json))])
    }

    /// The images of a handler's value, and its result; nil for any other value.
    var shown: (images: [JSON], result: JSON)? {
        guard let object, case .array(let images)? = object["images"] else { return nil }
        guard object.keys.allSatisfy({ $0 == "images" || $0 == "result" }) else { return nil }
        return (images, object["result"] ?? .null)
    }
}

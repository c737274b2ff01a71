// swift-tools-version:5.9
import PackageDescription

let package = Package(
    name: "ConductorVoice",
    platforms: [.iOS(.v15), .macOS(.v12)],
    products: [.library(name: "ConductorVoice", targets: ["ConductorVoice"])],
    targets: [
        .target(name: "ConductorVoice"),
        .executableTarget(name: "Lamp", dependencies: ["ConductorVoice"], path: "Example"),
        .testTarget(name: "ConductorVoiceTests", dependencies: ["ConductorVoice"]),
    ]
)

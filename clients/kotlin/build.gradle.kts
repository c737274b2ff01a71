plugins {
    kotlin("jvm") version "2.1.20"
    `java-library`
}

group = "conductor"
version = "0.1.0"

repositories { mavenCentral() }

dependencies {
    api("com.squareup.okhttp3:okhttp:4.12.0")
    api("org.jetbrains.kotlinx:kotlinx-coroutines-core:1.9.0")
    api("org.jetbrains.kotlinx:kotlinx-serialization-json:1.8.0")
    testImplementation(kotlin("test-junit"))
}

kotlin {
    jvmToolchain(17)
}

// The frames that the server's own tests hold it to.
sourceSets.test { resources.srcDir("../../tests/unit/events/golden") }

rootProject.name = "conductor-voice"

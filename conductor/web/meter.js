// The level of the microphone, for the ring.

/** `show(level)` gets 0 to 1, once a frame of the screen. */
export function meter(show) {
  let context = null;
  let stream = null;

  function watch() {
    const analyser = context.createAnalyser();
    analyser.fftSize = 512;
    context.createMediaStreamSource(stream).connect(analyser);
    const samples = new Float32Array(analyser.fftSize);
    const measured = context;
    const frame = () => {
      if (context !== measured) return;
      analyser.getFloatTimeDomainData(samples);
      const power = samples.reduce((sum, sample) => sum + sample * sample, 0) / samples.length;
      show(Math.min(1, Math.sqrt(power) * 5));
      requestAnimationFrame(frame);
    };
    frame();
  }

  return {
    /** Open a device; gives its track, or undefined where that is not possible. */
    async start(deviceId) {
      // Phones give the microphone to one user at a time: there the recognition needs it.
      if (stream || matchMedia("(pointer: coarse)").matches) return undefined;
      try {
        stream = await navigator.mediaDevices.getUserMedia({ audio: deviceId ? { deviceId } : true });
        context = new AudioContext();
        watch();
        return stream.getAudioTracks()[0];
      } catch {
        return undefined; // the ring does without
      }
    },
    stop() {
      for (const track of stream?.getTracks() ?? []) track.stop();
      context?.close();
      stream = context = null;
      show(0);
    },
  };
}

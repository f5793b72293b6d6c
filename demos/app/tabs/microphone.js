// Sends the microphone's sound in order and without gaps, however slow the answers: what was recorded while one is
// awaited goes with the next message. (gr.Audio sends tenths of a second, and drops those that overtake an answer.)
const EVERY = 400, MOST_SECONDS_UNSENT = 30;
const button = element.querySelector("button"), remark = element.querySelector("span");
const RECORDER = `registerProcessor("recorder", class extends AudioWorkletProcessor {
  process(inputs) { if (inputs[0][0]) this.port.postMessage(inputs[0][0].slice()); return true; }
});`;
let context = null, stream = null, recorder = null, timer = null, parts = [], held = 0, waiting = false, last = false;

const show = (label, text) => { button.textContent = label; remark.textContent = text; };

const release = () => {
  clearInterval(timer);
  if (stream) stream.getTracks().forEach((track) => track.stop());
  if (context) context.close();
  context = stream = timer = null;
};

const reason = (error) => {
  if (!navigator.mediaDevices) return "Browsers give the microphone to https pages and to localhost only.";
  if (error.name === "NotAllowedError") return "The microphone was refused: allow it for this page, and try again.";
  if (error.name === "NotFoundError") return "There is no microphone here: plug one in, or upload a recording.";
  return "The microphone cannot be used: " + error.message;
};

const begin = async () => {
  try {
    stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 } });
    context = new AudioContext();
    await context.audioWorklet.addModule(URL.createObjectURL(new Blob([RECORDER], { type: "text/javascript" })));
    recorder = new AudioWorkletNode(context, "recorder");
    recorder.port.onmessage = (message) => { parts.push(message.data); held += message.data.length; };
    context.createMediaStreamSource(stream).connect(recorder);
  } catch (error) {
    release();
    show("Speak", reason(error));
    return;
  }
  parts = []; held = 0; last = false; waiting = true;
  show("End", "Recording ...");
  trigger("click");
  timer = setInterval(send, EVERY);
};

const encoded = () => {
  const samples = new Int16Array(held);
  let place = 0;
  for (const part of parts) for (const value of part) samples[place++] = 32767 * Math.max(-1, Math.min(1, value));
  const bytes = new Uint8Array(samples.buffer);
  let text = "";
  for (let i = 0; i < bytes.length; i += 8192) text += String.fromCharCode(...bytes.subarray(i, i + 8192));
  parts = []; held = 0;
  return btoa(text);
};

const send = () => {
  if (!context || waiting) {
    if (context && held > MOST_SECONDS_UNSENT * context.sampleRate) finish("The server does not answer.");
    return;
  }
  waiting = true;
  props.value = { rate: context.sampleRate, sound: encoded() };
  trigger("input");
};

const finish = (text) => { release(); show("Speak", text); trigger("submit"); };

button.onclick = async () => {
  if (context) {
    last = true; recorder.port.onmessage = null; // what is held is sent yet
    show("End", "Finishing ...");
  } else {
    button.disabled = true; // a second click would begin a second recording
    await begin();
    button.disabled = false;
  }
};

// The server has answered: `heard` counts the seconds, `over` says that it takes no more.
watch("value", () => {
  if (!props.value || props.value.heard === undefined || !context) return;
  waiting = false;
  if (props.value.over || (last && !held)) finish("");
});

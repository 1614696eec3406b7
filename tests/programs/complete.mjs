// Greedy completion with node-llama-cpp, one line a token: what `decode` is in C.
//
//   node complete.mjs MODEL LAYERS COUNT [GPU]
//
// Run with node-llama-cpp's folder as working directory. LAYERS: 0 for the CPU, 99 for the GPUs, ours among them.
// GPU: which back-end the package of libraries has beside the CPU's; none if it is not given.
// Prints "token INDEX ID"; on standard error "devices: [...]", the GPUs that ggml has, and everything that llama.cpp logs.

import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [model, layers, count, gpu] = process.argv.slice(2);
const entry = createRequire(`${process.cwd()}/`).resolve("node-llama-cpp");
const { getLlama, LlamaLogLevel } = await import(pathToFileURL(entry));

const llama = await getLlama({
    gpu: gpu ?? false, // which of the packages of libraries
    build: "never",
    progressLogs: false,
    logLevel: LlamaLogLevel.debug,
    logger: (level, text) => process.stderr.write(`${text.trimEnd()}\n`),
});
console.error("devices:", JSON.stringify(await llama.getGpuDeviceNames()));
const loaded = await llama.loadModel({ modelPath: model, gpuLayers: Number(layers) });
// One thread: these builds' threads spin at their barriers, and on a machine that does anything else beside, a token then
// takes seconds.
const context = await loaded.createContext({ contextSize: 512, threads: 1 });
const prompt = loaded.tokenize("Once upon a time there was a ferry that");
let index = 0;
for await (const token of context.getSequence().evaluate(prompt, { temperature: 0 })) {
    console.log(`token ${index} ${token}`);
    if (++index >= Number(count)) {
        break;
    }
}
await llama.dispose();

"""What decode.c does, in Python.

    python3 decode.py BIN MODEL DEVICE COUNT

BIN: the folder with b10605's libraries. ctypes opens them with RTLD_LOCAL: their symbols are visible to nobody else.
DEVICE: a device's name, or "none" for the CPU. Prints "device NAME" for each device to standard error, and
"token INDEX ID HASH" for each token, the hash being FNV-1a over the bytes of all logits that chose it.
"""

import array
import ctypes
import sys
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int32, c_size_t, c_uint32, c_void_p

PROMPT = b"Once upon a time there was a ferry that"
CONTEXT_TOKENS = 1024
THREADS = 2


class ModelParams(ctypes.Structure):
    _fields_ = [
        ("devices", POINTER(c_void_p)),
        ("tensor_buft_overrides", c_void_p),
        ("n_gpu_layers", c_int32),
        ("modes", c_int32 * 3),
        ("pointers", c_void_p * 4),
        ("switches", c_bool * 6),
    ]


class ContextParams(ctypes.Structure):
    _fields_ = [
        ("n_ctx", c_uint32),
        ("sizes", c_uint32 * 6),
        ("n_threads", c_int32),
        ("n_threads_batch", c_int32),
        ("types", c_int32 * 5),
        ("rope", c_float * 8),
        ("callback", c_void_p * 2),
        ("cache_types", c_int32 * 2),
        ("abort_callback", c_void_p * 2),
        ("switches", c_bool * 6),
        ("samplers", c_void_p),
        ("n_samplers", c_size_t),
        ("ctx_other", c_void_p),
    ]


class Batch(ctypes.Structure):
    _fields_ = [("n_tokens", c_int32), ("arrays", c_void_p * 6)]


def function(library, name, result, *arguments):
    found = getattr(library, name)
    found.restype, found.argtypes = result, arguments
    return found


def fnv1a(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def pick_device(ggml, wanted):
    count = function(ggml, "ggml_backend_dev_count", c_size_t)
    get = function(ggml, "ggml_backend_dev_get", c_void_p, c_size_t)
    devices = [get(at) for at in range(count())]
    # This function is in libggml-base, where a look into libggml finds it too.
    name_of = function(ggml, "ggml_backend_dev_name", c_char_p, c_void_p)
    names = [name_of(device).decode() for device in devices]
    for name in names:
        print("device", name, file=sys.stderr)
    return None if wanted == "none" else devices[names.index(wanted)]


def open_context(llama, path, device):
    params = function(llama, "llama_model_default_params", ModelParams)()
    params.devices = (c_void_p * 2)(device, None)
    params.n_gpu_layers = 0 if device is None else 99
    load = function(llama, "llama_model_load_from_file", c_void_p, c_char_p, ModelParams)
    model = load(path.encode(), params)
    options = function(llama, "llama_context_default_params", ContextParams)()
    options.n_ctx = CONTEXT_TOKENS
    options.n_threads = options.n_threads_batch = THREADS
    make = function(llama, "llama_init_from_model", c_void_p, c_void_p, ContextParams)
    context = make(model, options) if model else None
    if not context:
        sys.exit("decode.py: no model or no context")
    return model, context


def main():
    directory, path, wanted, count = sys.argv[1:]
    ggml = ctypes.CDLL(f"{directory}/libggml.so")
    llama = ctypes.CDLL(f"{directory}/libllama.so")
    function(ggml, "ggml_backend_load_all_from_path", None, c_char_p)(directory.encode())
    model, context = open_context(llama, path, pick_device(ggml, wanted))
    vocab = function(llama, "llama_model_get_vocab", c_void_p, c_void_p)(model)
    size = function(llama, "llama_vocab_n_tokens", c_int32, c_void_p)(vocab)
    tokens = (c_int32 * 64)()
    tokenize = function(
        llama, "llama_tokenize", c_int32, c_void_p, c_char_p, c_int32, POINTER(c_int32), c_int32, c_bool, c_bool
    )
    length = tokenize(vocab, PROMPT, len(PROMPT), tokens, len(tokens), True, False)
    one = function(llama, "llama_batch_get_one", Batch, POINTER(c_int32), c_int32)
    decode = function(llama, "llama_decode", c_int32, c_void_p, Batch)
    logits_of = function(llama, "llama_get_logits_ith", c_void_p, c_void_p, c_int32)
    for index in range(int(count)):
        if decode(context, one(tokens, length)) != 0:
            sys.exit(3)
        data = ctypes.string_at(logits_of(context, -1), size * 4)
        logits = array.array("f", data)
        tokens[0], length = logits.index(max(logits)), 1
        print(f"token {index} {tokens[0]} {fnv1a(data):016x}", flush=True)
    function(llama, "llama_free", None, c_void_p)(context)
    function(llama, "llama_model_free", None, c_void_p)(model)


main()

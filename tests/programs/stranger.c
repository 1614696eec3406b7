// A program whose ggml has an interface that nobody knows: it loads the plug-in as ggml's loader does.
//
//     stranger PLUGIN
//
// Nothing of a real ggml is in it: the plug-in looks its symbols up in whoever calls it, and finds these.
#include <dlfcn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

// Where these getters look is how the plug-in tells interfaces apart: no ggml so far has these numbers of functions.
size_t ggml_backend_get_device(const size_t *object) { return object[1 + 17]; }
size_t ggml_backend_buffer_get_type(const size_t *object) { return object[12]; }
size_t ggml_backend_buft_get_device(const size_t *object) { return object[9]; }

// The youngest function that the plug-in needs, by which it tells what is too old.
const char *ggml_glu_op_name(int op) {
    (void)op;
    return "";
}

void ggml_log_internal(int level, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "level %d: ", level);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
}

int main(int argc, char **argv) {
    void *plugin = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    void *(*init)(void) = plugin ? (void *(*)(void))dlsym(plugin, "ggml_backend_init") : NULL;
    if (!init) {
        fprintf(stderr, "cannot load the plug-in: %s\n", dlerror());
        return 2;
    }
    puts(init() ? "accepted" : "refused");
    return dlclose(plugin);
}

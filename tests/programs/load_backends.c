/* Preloaded into a program that uses ggml and loads no back-ends, as some of llama.cpp's tests do in a build whose
 * back-ends are libraries: loads them before the program begins. Linked with libggml, which is thus ready by then.
 */
void ggml_backend_load_all(void);

__attribute__((constructor)) static void load(void) {
    ggml_backend_load_all();
}

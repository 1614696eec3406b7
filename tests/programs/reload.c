/* Loads and unloads a back-end library again and again, and says what each round leaves behind.
 *
 *   reload LIBRARY ROUNDS
 *
 * Prints "round INDEX devices N fds N threads N"; exits with 1 if the library does not load.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

#include "ggml-backend.h"

static int entries(const char *path) {
    DIR *dir = opendir(path);
    int count = 0;
    while (dir != NULL && readdir(dir) != NULL) {
        count++;
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return count - 2; /* "." and ".." */
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: reload LIBRARY ROUNDS\n");
        return 2;
    }
    for (int round = 0; round < atoi(argv[2]); round++) {
        ggml_backend_reg_t reg = ggml_backend_load(argv[1]);
        if (reg == NULL) {
            fprintf(stderr, "reload: %s does not load\n", argv[1]);
            return 1;
        }
        size_t devices = ggml_backend_reg_dev_count(reg);
        ggml_backend_unload(reg);
        printf("round %d devices %zu fds %d threads %d\n", round, devices, entries("/proc/self/fd"),
               entries("/proc/self/task"));
    }
    return 0;
}

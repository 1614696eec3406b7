/* Stands for virglrenderer with ggml-virtgpu's patches: hands commands to ggml-virtgpu's host library, each guest
 * process's in a process of its own.
 *
 *   virtgpu-host SOCKET HOST_LIBRARY BACKEND_LIBRARY THREADS
 *
 * ggml-virtgpu is made for GPUs. What keeps it from a CPU back-end is put right here (`adapt_cpu`), so that the two can be
 * compared where there is no GPU. A session that crashes takes its guest process with it, which would wait for ever. At a
 * session's end the number of its commands is printed.
 */
#include <dlfcn.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ggml-backend-impl.h"
#include "wire.h"

/* Of backend/shared/api_remoting.h, which is C++. */
enum { HANDSHAKE, LOAD_LIBRARY, FORWARD };
enum { PROTOCOL_MAJOR = 0, PROTOCOL_MINOR = 2, HANDSHAKE_MAGIC = 0xab1e };
enum { LOAD_CANNOT_OPEN = 4, LOAD_INITIALIZED = 6, FORWARDED = 4 };

/* Of backend/backend-virgl-apir.h, likewise. */
struct callbacks {
    const char *(*get_config)(uint32_t context, const char *key);
    void *(*get_shmem_ptr)(uint32_t context, uint32_t blob);
};
typedef uint32_t initialize_t(uint32_t context, const struct callbacks *callbacks);
typedef uint32_t dispatch_t(uint32_t context, const struct callbacks *callbacks, uint32_t command, const char *from,
                            const char *from_end, char *to, const char *to_end, char **to_after);

/* The first words of a command. */
struct command {
    int32_t type, flags;
    uint32_t reply_blob;
};

static const char *host_library, *backend_library;
static int threads;
static dispatch_t *dispatch;
static struct {
    char *at;
    uint64_t size;
} blobs[MAX_BLOBS];

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static const char *get_config(uint32_t context, const char *key) {
    (void)context;
    return strcmp(key, "ggml.library.path") == 0 ? backend_library : NULL;
}

static void *get_shmem_ptr(uint32_t context, uint32_t blob) {
    (void)context;
    return blob < MAX_BLOBS ? blobs[blob].at : NULL;
}

static const struct callbacks callbacks = {get_config, get_shmem_ptr};

static enum ggml_backend_dev_type type_gpu(ggml_backend_dev_t device) {
    (void)device;
    return GGML_BACKEND_DEVICE_TYPE_GPU;
}

static void keep_buffer(ggml_backend_buffer_t buffer) {
    (void)buffer;
}

static ggml_backend_buffer_t (*buffer_from_host_ptr)(ggml_backend_dev_t, void *, size_t, size_t);

static ggml_backend_buffer_t freeable_buffer_from_host_ptr(ggml_backend_dev_t device, void *at, size_t size,
                                                           size_t max_tensor_size) {
    ggml_backend_buffer_t buffer = buffer_from_host_ptr(device, at, size, max_tensor_size);
    if (buffer->iface.free_buffer == NULL) buffer->iface.free_buffer = keep_buffer;
    return buffer;
}

/* llama.cpp gives no layers to a device that calls itself a CPU, ggml-virtgpu calls `free_buffer` where there is none, and
 * nothing tells the back-end how many threads it may have. */
static void adapt_cpu(void *library) {
    void *backend = dlopen(backend_library, RTLD_NOW);
    void (*set_threads)(ggml_backend_t, int) = dlsym(backend, "ggml_backend_cpu_set_n_threads");
    if (set_threads == NULL) return;
    ggml_backend_dev_t device = *(ggml_backend_dev_t *)dlsym(library, "dev");
    set_threads(*(ggml_backend_t *)dlsym(library, "bck"), threads);
    device->iface.get_type = type_gpu;
    buffer_from_host_ptr = device->iface.buffer_from_host_ptr;
    device->iface.buffer_from_host_ptr = freeable_buffer_from_host_ptr;
}

static uint32_t load_library(void) {
    /* Brings the libggml-base that is beside it. */
    void *backend = dlopen(backend_library, RTLD_NOW);
    void *library = backend != NULL ? dlopen(host_library, RTLD_NOW) : NULL;
    if (library == NULL) {
        fprintf(stderr, "virtgpu-host: %s\n", dlerror());
        return LOAD_CANNOT_OPEN;
    }
    initialize_t *initialize = dlsym(library, "apir_backend_initialize");
    dispatch = dlsym(library, "apir_backend_dispatcher");
    uint32_t loaded = initialize(0, &callbacks);
    if (loaded != LOAD_INITIALIZED) return LOAD_INITIALIZED + loaded;
    adapt_cpu(library);
    return 0;
}

static void execute(const char *bytes, const char *end) {
    struct command command;
    memcpy(&command, bytes, sizeof command);
    bytes += sizeof command;
    /* The answer's first word is one more than what is returned; it is zero until then. */
    char *answer = blobs[command.reply_blob].at, *to = answer + sizeof(uint32_t), *to_after;
    uint32_t returned = 0, version[] = {PROTOCOL_MAJOR, PROTOCOL_MINOR};
    switch (command.type) {
    case HANDSHAKE:
        memcpy(to, version, sizeof version);
        returned = HANDSHAKE_MAGIC;
        break;
    case LOAD_LIBRARY:
        returned = load_library();
        break;
    case FORWARD:
        returned = FORWARDED + dispatch(0, &callbacks, (uint32_t)command.flags, bytes, end, to,
                                        answer + blobs[command.reply_blob].size, &to_after);
        break;
    default:
        fprintf(stderr, "virtgpu-host: there is no command %d\n", command.type);
        exit(1);
    }
    __atomic_store_n((uint32_t *)answer, returned + 1, __ATOMIC_RELEASE);
}

static int receive_memory(int guest) {
    int memory;
    char control[CMSG_SPACE(sizeof memory)], byte;
    struct iovec data = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    if (recvmsg(guest, &message, 0) != 1 || CMSG_FIRSTHDR(&message) == NULL) fail("virtgpu-host: the guest's memory");
    memcpy(&memory, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof memory);
    return memory;
}

static void serve(int guest) {
    int memory = receive_memory(guest);
    unsigned long commands = 0;
    static struct request request;
    const ssize_t head_bytes = offsetof(struct request, command);
    ssize_t bytes;
    while ((bytes = recv(guest, &request, sizeof request, 0)) >= head_bytes) {
        if (request.blob >= MAX_BLOBS) exit(1);
        switch (request.kind) {
        case CREATE_BLOB:
            blobs[request.blob].size = request.size;
            blobs[request.blob].at =
                mmap(NULL, request.size, PROT_READ | PROT_WRITE, MAP_SHARED, memory, (off_t)request.offset);
            if (blobs[request.blob].at == MAP_FAILED) fail("virtgpu-host: mapping a blob");
            break;
        case DESTROY_BLOB:
            munmap(blobs[request.blob].at, blobs[request.blob].size);
            blobs[request.blob].at = NULL;
            break;
        case EXECUTE:
            execute(request.command, request.command + (bytes - head_bytes));
            commands++;
            break;
        }
    }
    fprintf(stderr, "virtgpu-host: a session's commands: %lu\n", commands);
}

/* Serves a guest in a process of its own, and waits for both. */
static void look_after(int guest) {
    struct ucred peer;
    socklen_t length = sizeof peer;
    int status;
    if (getsockopt(guest, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) fail("virtgpu-host: the guest's process");
    pid_t session = fork();
    if (session == 0) {
        serve(guest);
        exit(0);
    }
    if (waitpid(session, &status, 0) != session || status != 0) {
        fprintf(stderr, "virtgpu-host: the session ended with status %#x\n", (unsigned)status);
        kill(peer.pid, SIGKILL);
    }
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: virtgpu-host SOCKET HOST_LIBRARY BACKEND_LIBRARY THREADS\n");
        return 2;
    }
    host_library = argv[2], backend_library = argv[3], threads = atoi(argv[4]);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(argv[1]) >= sizeof address.sun_path) return 2;
    strcpy(address.sun_path, argv[1]);
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 8) != 0)
        fail("virtgpu-host: listening");
    puts("listening");
    fflush(stdout);
    for (;;) {
        int guest = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (guest < 0) fail("virtgpu-host: accepting");
        pid_t keeper = fork();
        if (keeper == 0) {
            close(listener);
            look_after(guest);
            exit(0);
        }
        close(guest);
        while (waitpid(-1, NULL, WNOHANG) > 0) continue;
    }
}

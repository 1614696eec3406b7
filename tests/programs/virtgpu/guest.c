/* Stands for everything between ggml-virtgpu in a guest and the renderer on its host: libdrm, the guest's kernel, the
 * virtual machine. Nothing of them takes time here: a command is a packet to another process, a blob is memory that both
 * have. Linked into ggml-virtgpu instead of libdrm.
 */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <drm/virtgpu_drm.h>
#include <xf86drm.h>

#include "wire.h"

/* Room for all blobs that a process ever has; what is not used takes none. */
static const uint64_t SPACE_BYTES = 1ull << 42;
static const uint64_t PAGE_BYTES = 4096;

static int host = -1, memory = -1;
static uint64_t used_bytes;
static struct {
    uint64_t offset, size;
} blobs[MAX_BLOBS];

static int send_memory(void) {
    char control[CMSG_SPACE(sizeof memory)] = {0}, byte = 0;
    struct iovec data = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof memory);
    memcpy(CMSG_DATA(header), &memory, sizeof memory);
    return sendmsg(host, &message, MSG_NOSIGNAL) == 1 ? 0 : -1;
}

static int connect_to_host(void) {
    const char *path = getenv(HOST_SOCKET);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (path == NULL || strlen(path) >= sizeof address.sun_path) {
        errno = ENODEV;
        return -1;
    }
    strcpy(address.sun_path, path);
    host = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    memory = memfd_create("blobs", MFD_CLOEXEC);
    if (host < 0 || memory < 0 || ftruncate(memory, (off_t)SPACE_BYTES) != 0) return -1;
    return connect(host, (struct sockaddr *)&address, sizeof address) == 0 ? send_memory() : -1;
}

static int ask(const struct request *request, size_t command_bytes) {
    size_t bytes = offsetof(struct request, command) + command_bytes;
    return send(host, request, bytes, MSG_NOSIGNAL) == (ssize_t)bytes ? 0 : -1;
}

/* One device, whose node is the memory of the blobs: opened again and mapped, it gives them. */
int drmGetDevices2(uint32_t flags, drmDevicePtr devices[], int max_devices) {
    static char path[32];
    static drmDevice device = {.nodes = {[DRM_NODE_RENDER] = path}};
    (void)flags;
    if (max_devices < 1 || connect_to_host() != 0) return -errno;
    snprintf(path, sizeof path, "/proc/self/fd/%d", memory);
    devices[0] = &device;
    return 1;
}

void drmFreeDevices(drmDevicePtr devices[], int count) {
    (void)devices, (void)count;
}

drmVersionPtr drmGetVersion(int fd) {
    static drmVersion version = {.name = "virtio_gpu"};
    (void)fd;
    return &version;
}

void drmFreeVersion(drmVersionPtr version) {
    (void)version;
}

static int get_caps(struct drm_virtgpu_get_caps *caps) {
    /* virgl_renderer_capset_apir: its version, and that there are blobs. */
    uint32_t capset[] = {0, 1};
    memset((void *)(uintptr_t)caps->addr, 0, caps->size);
    memcpy((void *)(uintptr_t)caps->addr, capset, sizeof capset);
    return 0;
}

static int create_blob(struct drm_virtgpu_resource_create_blob *blob) {
    uint32_t handle = 1;
    while (handle < MAX_BLOBS && blobs[handle].size > 0) handle++;
    if (handle == MAX_BLOBS) {
        errno = ENOMEM;
        return -1;
    }
    struct request request = {.kind = CREATE_BLOB, .blob = handle, .offset = used_bytes, .size = blob->size};
    blobs[handle].offset = used_bytes;
    blobs[handle].size = blob->size;
    used_bytes += (blob->size + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    blob->bo_handle = blob->res_handle = handle;
    return ask(&request, 0);
}

static int destroy_blob(uint32_t handle) {
    struct request request = {.kind = DESTROY_BLOB, .blob = handle};
    int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    fallocate(memory, mode, (off_t)blobs[handle].offset, (off_t)blobs[handle].size);
    blobs[handle].size = 0;
    return ask(&request, 0);
}

static int execute(const struct drm_virtgpu_execbuffer *buffer) {
    struct request request = {.kind = EXECUTE};
    if (buffer->size > sizeof request.command) {
        errno = EINVAL;
        return -1;
    }
    memcpy(request.command, (const void *)(uintptr_t)buffer->command, buffer->size);
    return ask(&request, buffer->size);
}

int drmIoctl(int fd, unsigned long number, void *argument) {
    (void)fd;
    switch (number) {
    case DRM_IOCTL_VIRTGPU_GET_CAPS:
        return get_caps(argument);
    case DRM_IOCTL_VIRTGPU_CONTEXT_INIT:
        return 0;
    case DRM_IOCTL_VIRTGPU_RESOURCE_CREATE_BLOB:
        return create_blob(argument);
    case DRM_IOCTL_VIRTGPU_MAP: {
        struct drm_virtgpu_map *map = argument;
        map->offset = blobs[map->handle].offset;
        return 0;
    }
    case DRM_IOCTL_GEM_CLOSE:
        return destroy_blob(((struct drm_gem_close *)argument)->handle);
    case DRM_IOCTL_VIRTGPU_EXECBUFFER:
        return execute(argument);
    default:
        errno = EINVAL;
        return -1;
    }
}

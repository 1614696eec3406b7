/* What ggml-virtgpu uses of libdrm. `guest.c` has the functions. */
#pragma once

#include <stdint.h>

#include <drm/drm.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { DRM_NODE_PRIMARY, DRM_NODE_CONTROL, DRM_NODE_RENDER, DRM_NODE_MAX };

typedef struct {
    char *nodes[DRM_NODE_MAX];
} drmDevice, *drmDevicePtr;

typedef struct {
    int version_major;
    const char *name;
} drmVersion, *drmVersionPtr;

int drmGetDevices2(uint32_t flags, drmDevicePtr devices[], int max_devices);
void drmFreeDevices(drmDevicePtr devices[], int count);
drmVersionPtr drmGetVersion(int fd);
void drmFreeVersion(drmVersionPtr version);
int drmIoctl(int fd, unsigned long request, void *argument);

#ifdef __cplusplus
}
#endif

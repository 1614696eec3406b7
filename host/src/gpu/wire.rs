//! virtio-gpu's structures as they lie in guest memory (virtio 1.3, section 5.7), little-endian as everything in
//! virtio; only what the device reads or writes. A test holds them against the kernel's header.

use bytemuck::{Pod, Zeroable};
use virtio_bindings::virtio_gpu as uapi;

/// Command and response types: open newtype over what the guest wrote.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct CtrlType(pub u32);

macro_rules! ctrl_types {
    ($($name:ident = $uapi:ident),* $(,)?) => {
        impl CtrlType { $(pub const $name: CtrlType = CtrlType(uapi::$uapi);)* }
    };
}

ctrl_types! {
    GET_DISPLAY_INFO = virtio_gpu_ctrl_type_VIRTIO_GPU_CMD_GET_DISPLAY_INFO,
    RESOURCE_CREATE_2D = virtio_gpu_ctrl_type_VIRTIO_GPU_CMD_RESOURCE_CREATE_2D,
    RESOURCE_UNREF = virtio_gpu_ctrl_type_VIRTIO_GPU_CMD_RESOURCE_UNREF,
    SET_SCANOUT = virtio_gpu_ctrl_type_VIRTIO_GPU_CMD_SET_SCANOUT,
    RESOURCE_FLUSH = virtio_gpu_ctrl_type_VIRTIO_GPU_CMD_RESOURCE_FLUSH,
    TRANSFER_TO_HOST_2D = virtio_gpu_ctrl_type_VIRTIO_GPU_CMD_TRANSFER_TO_HOST_2D,
    ATTACH_BACKING = virtio_gpu_ctrl_type_VIRTIO_GPU_CMD_RESOURCE_ATTACH_BACKING,
    DETACH_BACKING = virtio_gpu_ctrl_type_VIRTIO_GPU_CMD_RESOURCE_DETACH_BACKING,
    GET_CAPSET_INFO = virtio_gpu_ctrl_type_VIRTIO_GPU_CMD_GET_CAPSET_INFO,
    GET_CAPSET = virtio_gpu_ctrl_type_VIRTIO_GPU_CMD_GET_CAPSET,
    GET_EDID = virtio_gpu_ctrl_type_VIRTIO_GPU_CMD_GET_EDID,
    RESOURCE_CREATE_BLOB = virtio_gpu_ctrl_type_VIRTIO_GPU_CMD_RESOURCE_CREATE_BLOB,
    CTX_CREATE = virtio_gpu_ctrl_type_VIRTIO_GPU_CMD_CTX_CREATE,
    CTX_DESTROY = virtio_gpu_ctrl_type_VIRTIO_GPU_CMD_CTX_DESTROY,
    CTX_ATTACH_RESOURCE = virtio_gpu_ctrl_type_VIRTIO_GPU_CMD_CTX_ATTACH_RESOURCE,
    CTX_DETACH_RESOURCE = virtio_gpu_ctrl_type_VIRTIO_GPU_CMD_CTX_DETACH_RESOURCE,
    RESOURCE_CREATE_3D = virtio_gpu_ctrl_type_VIRTIO_GPU_CMD_RESOURCE_CREATE_3D,
    TRANSFER_TO_HOST_3D = virtio_gpu_ctrl_type_VIRTIO_GPU_CMD_TRANSFER_TO_HOST_3D,
    TRANSFER_FROM_HOST_3D = virtio_gpu_ctrl_type_VIRTIO_GPU_CMD_TRANSFER_FROM_HOST_3D,
    SUBMIT_3D = virtio_gpu_ctrl_type_VIRTIO_GPU_CMD_SUBMIT_3D,
    RESOURCE_MAP_BLOB = virtio_gpu_ctrl_type_VIRTIO_GPU_CMD_RESOURCE_MAP_BLOB,
    RESOURCE_UNMAP_BLOB = virtio_gpu_ctrl_type_VIRTIO_GPU_CMD_RESOURCE_UNMAP_BLOB,
    OK_NODATA = virtio_gpu_ctrl_type_VIRTIO_GPU_RESP_OK_NODATA,
    OK_DISPLAY_INFO = virtio_gpu_ctrl_type_VIRTIO_GPU_RESP_OK_DISPLAY_INFO,
    OK_CAPSET_INFO = virtio_gpu_ctrl_type_VIRTIO_GPU_RESP_OK_CAPSET_INFO,
    OK_CAPSET = virtio_gpu_ctrl_type_VIRTIO_GPU_RESP_OK_CAPSET,
    OK_EDID = virtio_gpu_ctrl_type_VIRTIO_GPU_RESP_OK_EDID,
    ERR_UNSPEC = virtio_gpu_ctrl_type_VIRTIO_GPU_RESP_ERR_UNSPEC,
    ERR_OUT_OF_MEMORY = virtio_gpu_ctrl_type_VIRTIO_GPU_RESP_ERR_OUT_OF_MEMORY,
    ERR_INVALID_SCANOUT_ID = virtio_gpu_ctrl_type_VIRTIO_GPU_RESP_ERR_INVALID_SCANOUT_ID,
    ERR_INVALID_RESOURCE_ID = virtio_gpu_ctrl_type_VIRTIO_GPU_RESP_ERR_INVALID_RESOURCE_ID,
    ERR_INVALID_CONTEXT_ID = virtio_gpu_ctrl_type_VIRTIO_GPU_RESP_ERR_INVALID_CONTEXT_ID,
    ERR_INVALID_PARAMETER = virtio_gpu_ctrl_type_VIRTIO_GPU_RESP_ERR_INVALID_PARAMETER,
}

/// The command wants its answer to signal a fence of the guest.
pub const FLAG_FENCE: u32 = uapi::VIRTIO_GPU_FLAG_FENCE;
/// The fence belongs to the timeline of one ring of its context.
pub const FLAG_INFO_RING_IDX: u32 = uapi::VIRTIO_GPU_FLAG_INFO_RING_IDX;

macro_rules! wire {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? } = $uapi:ident;)*) => {
        $($(#[$doc])* #[repr(C)] #[derive(Clone, Copy, Debug, Pod, Zeroable)]
        pub struct $name { $(pub $field: $type),* }
        const _: () = assert!(size_of::<$name>() == size_of::<uapi::$uapi>());)*
    };
}

wire! {
    /// In front of every command and every response.
    CtrlHdr {
        ctrl_type: CtrlType,
        flags: u32,
        fence_id: u64,
        ctx_id: u32,
        ring_idx: u8,
        padding: [u8; 3],
    } = virtio_gpu_ctrl_hdr;
    /// CTX_CREATE: a debug name and, with CONTEXT_INIT, the capset.
    CtxCreate {
        hdr: CtrlHdr,
        nlen: u32,
        context_init: u32,
        debug_name: [u8; 64],
    } = virtio_gpu_ctx_create;
    /// A command about one resource: UNREF, DETACH_BACKING, CTX_ATTACH_RESOURCE, CTX_DETACH_RESOURCE.
    ResourceCommand {
        hdr: CtrlHdr,
        resource_id: u32,
        padding: u32,
    } = virtio_gpu_resource_unref;
    /// RESOURCE_CREATE_2D.
    ResourceCreate2d {
        hdr: CtrlHdr,
        resource_id: u32,
        format: u32,
        width: u32,
        height: u32,
    } = virtio_gpu_resource_create_2d;
    /// RESOURCE_CREATE_3D; for a buffer only the id matters here.
    ResourceCreate3d {
        hdr: CtrlHdr,
        resource_id: u32,
        target: u32,
        format: u32,
        bind: u32,
        width: u32,
        height: u32,
        depth: u32,
        array_size: u32,
        last_level: u32,
        nr_samples: u32,
        flags: u32,
        padding: u32,
    } = virtio_gpu_resource_create_3d;
    /// RESOURCE_CREATE_BLOB; `nr_entries` times [`MemEntry`] follow.
    ResourceCreateBlob {
        hdr: CtrlHdr,
        resource_id: u32,
        blob_mem: u32,
        blob_flags: u32,
        nr_entries: u32,
        blob_id: u64,
        size: u64,
    } = virtio_gpu_resource_create_blob;
    /// RESOURCE_ATTACH_BACKING; `nr_entries` times [`MemEntry`] follow.
    AttachBacking {
        hdr: CtrlHdr,
        resource_id: u32,
        nr_entries: u32,
    } = virtio_gpu_resource_attach_backing;
    /// One run of guest-physical memory.
    MemEntry {
        addr: u64,
        length: u32,
        padding: u32,
    } = virtio_gpu_mem_entry;
    /// SET_SCANOUT: rectangle, scanout, resource.
    SetScanout {
        hdr: CtrlHdr,
        rect: [u32; 4],
        scanout_id: u32,
        resource_id: u32,
    } = virtio_gpu_set_scanout;
    /// RESOURCE_FLUSH.
    ResourceFlush {
        hdr: CtrlHdr,
        rect: [u32; 4],
        resource_id: u32,
        padding: u32,
    } = virtio_gpu_resource_flush;
    /// TRANSFER_TO_HOST_2D.
    Transfer2d {
        hdr: CtrlHdr,
        rect: [u32; 4],
        offset: u64,
        resource_id: u32,
        padding: u32,
    } = virtio_gpu_transfer_to_host_2d;
    /// TRANSFER_TO_HOST_3D and TRANSFER_FROM_HOST_3D.
    Transfer3d {
        hdr: CtrlHdr,
        cube: [u32; 6],
        offset: u64,
        resource_id: u32,
        level: u32,
        stride: u32,
        layer_stride: u32,
    } = virtio_gpu_transfer_host_3d;
    /// SUBMIT_3D; `size` bytes follow.
    Submit {
        hdr: CtrlHdr,
        size: u32,
        padding: u32,
    } = virtio_gpu_cmd_submit;
    /// GET_CAPSET_INFO.
    GetCapsetInfo {
        hdr: CtrlHdr,
        capset_index: u32,
        padding: u32,
    } = virtio_gpu_get_capset_info;
    /// Its answer, behind the header.
    CapsetInfo {
        hdr: CtrlHdr,
        capset_id: u32,
        max_version: u32,
        max_size: u32,
        padding: u32,
    } = virtio_gpu_resp_capset_info;
    /// GET_CAPSET.
    GetCapset {
        hdr: CtrlHdr,
        capset_id: u32,
        capset_version: u32,
    } = virtio_gpu_get_capset;
    /// GET_EDID.
    GetEdid {
        hdr: CtrlHdr,
        scanout: u32,
        padding: u32,
    } = virtio_gpu_cmd_get_edid;
}

/// Modes that follow the header in the answer to GET_DISPLAY_INFO: 16 of 24 bytes, all off.
pub const DISPLAY_INFO_BYTES: usize = size_of::<uapi::virtio_gpu_resp_display_info>() - size_of::<CtrlHdr>();
/// What follows the header in the answer to GET_EDID: a size (0: there is no monitor) and room.
pub const EDID_BYTES: usize = size_of::<uapi::virtio_gpu_resp_edid>() - size_of::<CtrlHdr>();

/// The fixed part of a command, or nothing if the command is shorter. More bytes may follow.
pub fn read<T: Pod>(command: &[u8]) -> Option<T> {
    command.get(..size_of::<T>()).map(bytemuck::pod_read_unaligned)
}

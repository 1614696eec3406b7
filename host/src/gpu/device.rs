//! The device: every command of the control queue but EXECBUFFER's payload, which is in [`exec`](super::exec).

use std::collections::HashMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use ferry_protocol::virtgpu::{CAPSET_ID, CAPSET_MAGIC, CAPSET_VERSION, Capset};
use virtio_bindings::virtio_config::{VIRTIO_F_NOTIFY_ON_EMPTY, VIRTIO_F_RING_RESET, VIRTIO_F_VERSION_1};
use virtio_bindings::virtio_gpu as uapi;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use vm_memory::{GuestAddressSpace, GuestMemoryAtomic, GuestMemoryMmap};

use super::context::{Context, ContextId, Contexts, SessionId};
use super::counters::Counters;
use super::fence::Wakeups;
use super::limits::{
    FENCE_DEADLINE, FIRST_COMMAND_PATIENCE, Limits, MAX_ARMED_FENCES_PER_SESSION, MAX_BACKING_ENTRIES,
    MAX_EXEC_BYTES,
};
use super::queue::GuestMemory;
use super::ram::{Piece, RamTable, ScatterError};
use super::resource::{Kind, Resource, ResourceId, Resources};
use super::throttle::Throttle;
use super::wire::{self, CtrlHdr, CtrlType, MemEntry};

/// Feature bits that the device offers. RING_RESET and NOTIFY_ON_EMPTY because QEMU acknowledges them whether or
/// not they are offered, and a bit acknowledged without an offer ends the connection.
pub const FEATURES: u64 = 1 << VIRTIO_F_VERSION_1
    | 1 << VIRTIO_F_RING_RESET
    | 1 << VIRTIO_F_NOTIFY_ON_EMPTY
    | 1 << VIRTIO_RING_F_INDIRECT_DESC
    | 1 << VIRTIO_RING_F_EVENT_IDX
    | 1 << uapi::VIRTIO_GPU_F_VIRGL
    | 1 << uapi::VIRTIO_GPU_F_EDID
    | 1 << uapi::VIRTIO_GPU_F_RESOURCE_BLOB
    | 1 << uapi::VIRTIO_GPU_F_CONTEXT_INIT;

/// One scanout, always off: Linux 6.1 refuses a device without any.
const SCANOUTS: u32 = 1;
const CAPSETS: u32 = 1;
/// Largest configuration read that is answered in full; vhost-user itself allows 256 bytes.
const MAX_CONFIG_BYTES: usize = 4096;

/// Answer to one command.
pub struct Answer {
    /// Header and body.
    pub bytes: Vec<u8>,
    /// Hold its fence for this session, if it can be.
    pub hold: Option<SessionId>,
}

/// What a command that went well answers.
pub(super) struct Done {
    ctrl_type: CtrlType,
    body: Vec<u8>,
    hold: Option<SessionId>,
}

/// A command that is answered with an error, and what goes to the log.
pub(super) struct Fault {
    code: CtrlType,
    why: String,
}

impl Fault {
    pub(super) fn new(code: CtrlType, why: impl fmt::Display) -> Fault {
        Fault { code, why: why.to_string() }
    }
}

impl From<ScatterError> for Fault {
    fn from(error: ScatterError) -> Fault {
        let code = match error {
            ScatterError::TooMany(_) => CtrlType::ERR_OUT_OF_MEMORY,
            ScatterError::NotShared(_) => CtrlType::ERR_UNSPEC,
            _ => CtrlType::ERR_INVALID_PARAMETER,
        };
        Fault::new(code, error)
    }
}

pub(super) type Outcome = Result<Done, Fault>;

impl Done {
    pub(super) const NOTHING: Done = Done { ctrl_type: CtrlType::OK_NODATA, body: Vec::new(), hold: None };

    pub(super) fn holding(session: SessionId) -> Done {
        Done { hold: Some(session), ..Done::NOTHING }
    }
}

/// Whether the VM has sent a command since it was started.
enum FirstCommand {
    /// Its guest has not looked for the device.
    NotDue,
    /// Its guest has started the queue.
    Due,
    Seen,
}

/// The virtio-gpu device of one VM.
pub struct Device {
    pub(super) contexts: HashMap<ContextId, Context>,
    pub(super) resources: Resources,
    pub(super) front: Box<dyn Contexts>,
    pub(super) wakeups: Wakeups,
    pub(super) limits: Limits,
    pub(super) counters: Arc<Counters>,
    pub(super) next_session: u64,
    pub(super) ram: RamTable,
    memory: Option<GuestMemoryAtomic<GuestMemoryMmap>>,
    capset: Capset,
    features: u64,
    first_command: FirstCommand,
    throttle: Throttle,
}

impl Device {
    /// A device without memory. `contexts` should hold a clone of `wakeups`; `versions` is the protocol's range.
    ///
    /// # Errors
    /// The thread that keeps the fences' deadlines could not be started.
    pub fn new(
        contexts: Box<dyn Contexts>,
        wakeups: Wakeups,
        limits: Limits,
        versions: RangeInclusive<u16>,
    ) -> std::io::Result<Device> {
        wakeups.spawn_timer()?;
        Ok(Device {
            contexts: HashMap::new(),
            resources: Resources::default(),
            front: contexts,
            counters: wakeups.counters(),
            wakeups,
            limits,
            next_session: 1,
            ram: RamTable::default(),
            memory: None,
            capset: capset(&limits, versions),
            features: 0,
            first_command: FirstCommand::NotDue,
            throttle: Throttle::new(Instant::now()),
        })
    }

    /// The device's counters.
    pub fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }

    /// The handle that wakes the guest.
    pub fn wakeups(&self) -> &Wakeups {
        &self.wakeups
    }

    /// Feature bits that the guest took; without them its commands are unknown ones.
    pub fn set_features(&mut self, features: u64) {
        self.features = features;
    }

    /// `size` bytes of the configuration space from `offset` on. Zeros follow what the device knows: VMMs ask for
    /// 16 bytes or 20, and take a short answer for a failure.
    pub fn config(&self, offset: u32, size: u32) -> Vec<u8> {
        let known: Vec<u8> =
            [0, 0, SCANOUTS, CAPSETS].iter().flat_map(|field: &u32| field.to_le_bytes()).collect();
        let (offset, size) = (offset as usize, (size as usize).min(MAX_CONFIG_BYTES));
        (offset..offset + size).map(|at| known.get(at).copied().unwrap_or(0)).collect()
    }

    /// The VM's memory is now this. Returns after no worker can touch pages that are no longer what they were.
    ///
    /// # Errors
    /// A file behind guest RAM could not be looked at; the device then has no memory.
    pub fn set_memory(&mut self, memory: GuestMemoryAtomic<GuestMemoryMmap>) -> std::io::Result<()> {
        let now = memory.memory().into_inner();
        let table = RamTable::new(&now);
        let now = table.is_ok().then_some(now);
        self.memory = table.is_ok().then_some(memory);
        let (table, result) = match table {
            Ok(table) => (table, Ok(())),
            Err(error) => (RamTable::default(), Err(error)),
        };
        if !table.is_shared() {
            tracing::warn!("the VM shares no memory: start it with share=on memory (see `ferry doctor`)");
        }
        for id in self.resources.ids() {
            let Some(pieces) = self.resources.pieces_mut(id) else { continue };
            if table.still_holds(&self.ram, pieces) {
                table.renumber(&self.ram, pieces);
            } else {
                self.withdraw(id, false);
                self.resources.set_pieces(id, None);
            }
        }
        self.wakeups.set_memory(now);
        self.ram = table;
        self.update_gauges();
        result
    }

    /// The control queue stops: the VM is paused, or the guest resets the device, and which of the two is known
    /// only when the queue starts again. Pages may be anybody's after a reset, so all sessions end here; contexts
    /// and resources stay, so that a resumed guest finds them.
    pub fn stop(&mut self) {
        for context in self.contexts.keys().copied().collect::<Vec<_>>() {
            self.end_session(context, true);
        }
        self.wakeups.flush();
        self.update_gauges();
        if matches!(self.first_command, FirstCommand::Due) {
            self.first_command = FirstCommand::NotDue;
            self.wakeups.expect_command(None);
        }
    }

    /// The guest has reset the device: no contexts, no resources. Features and memory are the VMM's to change.
    pub fn reset(&mut self) {
        self.stop();
        self.contexts.clear();
        self.resources.clear();
        self.update_gauges();
    }

    /// The VMM is gone: as before it came, and its VM's memory is let go of.
    pub fn power_off(&mut self) {
        self.reset();
        self.features = 0;
        self.first_command = FirstCommand::NotDue;
        self.ram = RamTable::default();
        self.memory = None;
        self.wakeups.set_memory(None);
    }

    /// The guest kicked, and `served` chains were there or not. A VM without share=on hands over the file of its RAM
    /// all the same, but its guest writes to a private copy: the file's queue stays empty. A kick without a chain is no
    /// sign of that, as the start of a queue makes some; a driver that starts it and then sends nothing is.
    pub(super) fn note_kick(&mut self, served: bool) {
        match (&self.first_command, served) {
            (FirstCommand::NotDue | FirstCommand::Due, true) => {
                self.first_command = FirstCommand::Seen;
                self.wakeups.expect_command(None);
            }
            (FirstCommand::NotDue, false) => {
                self.first_command = FirstCommand::Due;
                self.wakeups.expect_command(Some(Instant::now() + FIRST_COMMAND_PATIENCE));
            }
            _ => {}
        }
    }

    /// Writes a log line that a guest can cause.
    pub(super) fn complain(&mut self, what: fmt::Arguments<'_>) {
        if let Some(suppressed) = self.throttle.admit(Instant::now()) {
            tracing::warn!(suppressed, "guest: {what}");
        }
    }

    /// Answers one command as [`execute`](Self::execute) does. A panic is a mistake of this program, which costs the VM
    /// its sessions but not its device: a device that stops answering blocks the guest kernel for good.
    pub(super) fn execute_guarded(&mut self, request: &[u8]) -> Answer {
        let outcome = catch_unwind(AssertUnwindSafe(|| self.execute(request)));
        outcome.unwrap_or_else(|_| {
            tracing::error!("the virtio-gpu device panicked on a command of its guest and was reset");
            Counters::add(&self.counters.errors);
            self.reset();
            Answer { bytes: header_only(CtrlType::ERR_UNSPEC), hold: None }
        })
    }

    /// Answers one command, given as the bytes that the guest sent.
    pub fn execute(&mut self, request: &[u8]) -> Answer {
        Counters::add(&self.counters.commands);
        let Some(hdr) = wire::read::<CtrlHdr>(request) else {
            Counters::add(&self.counters.errors);
            self.complain(format_args!("a command of {} bytes, shorter than its header", request.len()));
            return Answer { bytes: header_only(CtrlType::ERR_UNSPEC), hold: None };
        };
        let done = self.dispatch(&hdr, request).unwrap_or_else(|fault| {
            Counters::add(&self.counters.errors);
            self.complain(format_args!(
                "command {:#x} of context {}: {}",
                hdr.ctrl_type.0, hdr.ctx_id, fault.why
            ));
            Done { ctrl_type: fault.code, ..Done::NOTHING }
        });
        if done.hold.is_none() {
            self.update_gauges();
        }
        let fenced = hdr.flags & wire::FLAG_FENCE != 0;
        let flags = hdr.flags & (wire::FLAG_FENCE | wire::FLAG_INFO_RING_IDX);
        // Context, fence id and ring go back as they came: with CONTEXT_INIT they name the fence's timeline.
        let answer = CtrlHdr { ctrl_type: done.ctrl_type, flags, padding: [0; 3], ..hdr };
        Answer {
            bytes: [bytemuck::bytes_of(&answer), &done.body].concat(),
            hold: done.hold.filter(|_| fenced),
        }
    }

    fn dispatch(&mut self, hdr: &CtrlHdr, request: &[u8]) -> Outcome {
        match hdr.ctrl_type {
            CtrlType::GET_DISPLAY_INFO => data(CtrlType::OK_DISPLAY_INFO, vec![0; wire::DISPLAY_INFO_BYTES]),
            CtrlType::GET_EDID => self.get_edid(fixed(request)?),
            CtrlType::GET_CAPSET_INFO => self.get_capset_info(fixed(request)?),
            CtrlType::GET_CAPSET => self.get_capset(fixed(request)?),
            CtrlType::RESOURCE_CREATE_2D => self.create_2d(fixed(request)?),
            CtrlType::RESOURCE_CREATE_3D => self.create_3d(fixed(request)?),
            CtrlType::RESOURCE_CREATE_BLOB if self.has(uapi::VIRTIO_GPU_F_RESOURCE_BLOB) => {
                self.create_blob(request)
            }
            CtrlType::RESOURCE_UNREF => self.unref(resource(request)?),
            CtrlType::ATTACH_BACKING => self.attach_backing(request),
            CtrlType::DETACH_BACKING => self.detach_backing(resource(request)?),
            CtrlType::CTX_CREATE => self.create_context(fixed(request)?),
            CtrlType::CTX_DESTROY => self.destroy_context(ContextId(hdr.ctx_id)),
            CtrlType::CTX_ATTACH_RESOURCE => self.attach_resource(ContextId(hdr.ctx_id), resource(request)?),
            CtrlType::CTX_DETACH_RESOURCE => self.detach_resource(ContextId(hdr.ctx_id), resource(request)?),
            CtrlType::SUBMIT_3D => self.submit(ContextId(hdr.ctx_id), request),
            CtrlType::SET_SCANOUT => self.set_scanout(fixed(request)?),
            CtrlType::RESOURCE_FLUSH => self.accept(fixed::<wire::ResourceFlush>(request)?.resource_id),
            CtrlType::TRANSFER_TO_HOST_2D => self.accept(fixed::<wire::Transfer2d>(request)?.resource_id),
            CtrlType::TRANSFER_TO_HOST_3D | CtrlType::TRANSFER_FROM_HOST_3D => {
                self.accept(fixed::<wire::Transfer3d>(request)?.resource_id)
            }
            CtrlType::RESOURCE_MAP_BLOB | CtrlType::RESOURCE_UNMAP_BLOB => Err(Fault::new(
                CtrlType::ERR_INVALID_PARAMETER,
                "no resource is host-visible: this VMM shares no memory of the host's with its guest",
            )),
            _ => Err(Fault::new(CtrlType::ERR_UNSPEC, "unknown command")),
        }
    }

    fn has(&self, feature: u32) -> bool {
        self.features & (1 << feature) != 0
    }

    pub(super) fn memory(&self) -> Option<GuestMemory> {
        self.memory.as_ref().map(|memory| memory.memory())
    }

    fn get_edid(&self, command: wire::GetEdid) -> Outcome {
        if command.scanout >= SCANOUTS {
            return Err(Fault::new(
                CtrlType::ERR_INVALID_SCANOUT_ID,
                format_args!("scanout {}", command.scanout),
            ));
        }
        data(CtrlType::OK_EDID, vec![0; wire::EDID_BYTES])
    }

    fn get_capset_info(&self, command: wire::GetCapsetInfo) -> Outcome {
        if command.capset_index >= CAPSETS {
            let why = format_args!("capset index {}", command.capset_index);
            return Err(Fault::new(CtrlType::ERR_INVALID_PARAMETER, why));
        }
        let info = wire::CapsetInfo {
            hdr: bytemuck::Zeroable::zeroed(),
            capset_id: CAPSET_ID,
            max_version: CAPSET_VERSION,
            max_size: size_of::<Capset>() as u32,
            padding: 0,
        };
        data(CtrlType::OK_CAPSET_INFO, bytemuck::bytes_of(&info)[size_of::<CtrlHdr>()..].to_vec())
    }

    fn get_capset(&self, command: wire::GetCapset) -> Outcome {
        // Version 0 is what a guest asks for that takes any.
        if command.capset_id != CAPSET_ID || command.capset_version > CAPSET_VERSION {
            let why = format_args!("capset {} version {}", command.capset_id, command.capset_version);
            return Err(Fault::new(CtrlType::ERR_INVALID_PARAMETER, why));
        }
        data(CtrlType::OK_CAPSET, bytemuck::bytes_of(&self.capset).to_vec())
    }

    /// A command about a resource that exists, with nothing to do: pages are shared, and nothing is shown.
    fn accept(&self, id: u32) -> Outcome {
        self.known(ResourceId(id)).map(|_| Done::NOTHING)
    }

    fn set_scanout(&self, command: wire::SetScanout) -> Outcome {
        match command {
            wire::SetScanout { scanout_id: SCANOUTS.., .. } => {
                let why = format_args!("scanout {}", command.scanout_id);
                Err(Fault::new(CtrlType::ERR_INVALID_SCANOUT_ID, why))
            }
            wire::SetScanout { resource_id: 0, .. } => Ok(Done::NOTHING),
            _ => self.accept(command.resource_id),
        }
    }

    pub(super) fn known(&self, id: ResourceId) -> Result<&Resource, Fault> {
        let unknown = || Fault::new(CtrlType::ERR_INVALID_RESOURCE_ID, format_args!("no resource {}", id.0));
        self.resources.get(id).ok_or_else(unknown)
    }

    fn create_2d(&mut self, command: wire::ResourceCreate2d) -> Outcome {
        self.create(command.resource_id, Kind::Console, None)
    }

    fn create_3d(&mut self, command: wire::ResourceCreate3d) -> Outcome {
        self.create(command.resource_id, Kind::Buffer, None)
    }

    fn create_blob(&mut self, request: &[u8]) -> Outcome {
        let command: wire::ResourceCreateBlob = fixed(request)?;
        if command.blob_mem != uapi::VIRTIO_GPU_BLOB_MEM_GUEST {
            let why = format_args!("blob of memory type {}: only guest memory is shared", command.blob_mem);
            return Err(Fault::new(CtrlType::ERR_INVALID_PARAMETER, why));
        }
        let pieces = self.resolve(&request[size_of_val(&command)..], command.nr_entries)?;
        let found: u64 = pieces.iter().map(|piece| piece.len).sum();
        if command.size == 0 || found < command.size {
            let why = format_args!("blob of {} bytes with {found} bytes of pages", command.size);
            return Err(Fault::new(CtrlType::ERR_INVALID_PARAMETER, why));
        }
        self.create(command.resource_id, Kind::Blob, Some(pieces))
    }

    fn create(&mut self, id: u32, kind: Kind, pieces: Option<Vec<Piece>>) -> Outcome {
        let id = ResourceId(id);
        if id.0 == 0 || self.resources.get(id).is_some() {
            let why = format_args!("resource id {} is not free", id.0);
            return Err(Fault::new(CtrlType::ERR_INVALID_RESOURCE_ID, why));
        }
        if self.resources.len() >= self.limits.resources {
            let why =
                format_args!("{} resources; at most {}", self.resources.len() + 1, self.limits.resources);
            return Err(Fault::new(CtrlType::ERR_OUT_OF_MEMORY, why));
        }
        self.resources.insert(id, Resource { kind, pieces });
        Ok(Done::NOTHING)
    }

    fn unref(&mut self, id: ResourceId) -> Outcome {
        self.known(id)?;
        self.withdraw(id, true);
        for context in self.contexts.values_mut() {
            context.attached.remove(&id);
        }
        self.resources.remove(id);
        Ok(Done::NOTHING)
    }

    fn attach_backing(&mut self, request: &[u8]) -> Outcome {
        let command: wire::AttachBacking = fixed(request)?;
        let id = ResourceId(command.resource_id);
        let known = self.known(id)?;
        if known.pieces.is_some() || known.kind == Kind::Blob {
            let why = format_args!("resource {} already has its pages", id.0);
            return Err(Fault::new(CtrlType::ERR_UNSPEC, why));
        }
        let pieces = self.resolve(&request[size_of_val(&command)..], command.nr_entries)?;
        if pieces.is_empty() {
            return Err(Fault::new(CtrlType::ERR_INVALID_PARAMETER, "a backing without entries"));
        }
        self.resources.set_pieces(id, Some(pieces));
        Ok(Done::NOTHING)
    }

    fn detach_backing(&mut self, id: ResourceId) -> Outcome {
        if self.known(id)?.kind == Kind::Blob {
            return Err(Fault::new(CtrlType::ERR_UNSPEC, format_args!("blob {} keeps its pages", id.0)));
        }
        self.withdraw(id, true);
        self.resources.set_pieces(id, None);
        Ok(Done::NOTHING)
    }

    /// Checks a scatter list, given as the bytes behind a command's fixed part.
    fn resolve(&self, bytes: &[u8], count: u32) -> Result<Vec<Piece>, Fault> {
        let count = count as usize;
        if count > MAX_BACKING_ENTRIES {
            return Err(ScatterError::TooMany(count).into());
        }
        let needed = count * size_of::<MemEntry>();
        let Some(bytes) = bytes.get(..needed) else {
            let why = format_args!("{count} backing entries in {} bytes", bytes.len());
            return Err(Fault::new(CtrlType::ERR_INVALID_PARAMETER, why));
        };
        let entries = bytes.chunks_exact(size_of::<MemEntry>()).map(bytemuck::pod_read_unaligned);
        let entries: Vec<MemEntry> = entries.collect();
        let pieces = self.ram.resolve(&entries)?;
        let extents = self.resources.extents() + pieces.len();
        if extents > self.limits.extents {
            let why = format_args!("{extents} extents in all; at most {}", self.limits.extents);
            return Err(Fault::new(CtrlType::ERR_OUT_OF_MEMORY, why));
        }
        Ok(pieces)
    }

    fn create_context(&mut self, command: wire::CtxCreate) -> Outcome {
        let id = ContextId(command.hdr.ctx_id);
        if id.0 == 0 || self.contexts.contains_key(&id) {
            let why = format_args!("context id {} is not free", id.0);
            return Err(Fault::new(CtrlType::ERR_INVALID_CONTEXT_ID, why));
        }
        let capset = command.context_init & uapi::VIRTIO_GPU_CONTEXT_INIT_CAPSET_ID_MASK;
        if self.has(uapi::VIRTIO_GPU_F_CONTEXT_INIT) && capset != 0 && capset != CAPSET_ID {
            let why = format_args!("a context for capset {capset}; this device has {CAPSET_ID}");
            return Err(Fault::new(CtrlType::ERR_INVALID_PARAMETER, why));
        }
        if self.contexts.len() >= self.limits.contexts {
            let why = format_args!("{} contexts; at most {}", self.contexts.len() + 1, self.limits.contexts);
            return Err(Fault::new(CtrlType::ERR_OUT_OF_MEMORY, why));
        }
        self.contexts.insert(id, Context::default());
        Ok(Done::NOTHING)
    }

    fn destroy_context(&mut self, id: ContextId) -> Outcome {
        self.context(id)?;
        self.end_session(id, true);
        self.contexts.remove(&id);
        Ok(Done::NOTHING)
    }

    fn attach_resource(&mut self, context: ContextId, id: ResourceId) -> Outcome {
        self.known(id)?;
        self.context(context)?.attached.insert(id);
        Ok(Done::NOTHING)
    }

    fn detach_resource(&mut self, context: ContextId, id: ResourceId) -> Outcome {
        self.known(id)?;
        if !self.context(context)?.attached.remove(&id) {
            let why = format_args!("resource {} is not attached to context {}", id.0, context.0);
            return Err(Fault::new(CtrlType::ERR_INVALID_RESOURCE_ID, why));
        }
        self.withdraw_from(context, id, true);
        Ok(Done::NOTHING)
    }

    pub(super) fn context(&mut self, id: ContextId) -> Result<&mut Context, Fault> {
        let unknown = || Fault::new(CtrlType::ERR_INVALID_CONTEXT_ID, format_args!("no context {}", id.0));
        self.contexts.get_mut(&id).ok_or_else(unknown)
    }

    fn update_gauges(&self) {
        let mapped =
            self.contexts.values().filter_map(|context| context.session.as_ref()).map(|s| s.bytes()).sum();
        Counters::set(&self.counters.contexts, self.contexts.len() as u64);
        Counters::set(&self.counters.resources, self.resources.len() as u64);
        Counters::set(&self.counters.mapped_bytes, mapped);
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.reset();
        self.wakeups.close();
    }
}

fn capset(limits: &Limits, versions: RangeInclusive<u16>) -> Capset {
    Capset {
        magic: CAPSET_MAGIC,
        version_min: *versions.start(),
        version_max: *versions.end(),
        command_bytes_max: MAX_EXEC_BYTES as u32,
        armed_fences_max: MAX_ARMED_FENCES_PER_SESSION as u32,
        fence_deadline_ms: FENCE_DEADLINE.as_millis() as u32,
        regions_max: limits.regions_per_session as u32,
        region_bytes_max: limits.region_bytes,
        session_bytes_max: limits.session_bytes,
        reserved: [0; 6],
    }
}

/// An answer to a command whose header could not be used.
fn header_only(ctrl_type: CtrlType) -> Vec<u8> {
    let hdr = CtrlHdr { ctrl_type, ..bytemuck::Zeroable::zeroed() };
    bytemuck::bytes_of(&hdr).to_vec()
}

fn data(ctrl_type: CtrlType, body: Vec<u8>) -> Outcome {
    Ok(Done { ctrl_type, body, hold: None })
}

/// The fixed part of a command.
pub(super) fn fixed<T: bytemuck::Pod>(request: &[u8]) -> Result<T, Fault> {
    let short = || {
        let why = format_args!("{} bytes where {} are needed", request.len(), size_of::<T>());
        Fault::new(CtrlType::ERR_INVALID_PARAMETER, why)
    };
    wire::read(request).ok_or_else(short)
}

fn resource(request: &[u8]) -> Result<ResourceId, Fault> {
    fixed::<wire::ResourceCommand>(request).map(|command| ResourceId(command.resource_id))
}

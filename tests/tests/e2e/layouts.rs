//! The layouts of other people's structs, against their own headers: a C program says where each field is.

use ferry_ggml::backend::{
    Backend, BackendV2b, Buffer, BufferType, BufferTypeV1, BufferTypeV3, BufferV2, Caps, Device,
    DeviceInterface, PropsV2, Reg, RegInterface,
};
use ferry_ggml::graph::HashSet;
use ferry_ggml::{CGraph, Tensor};
use ferry_tests::artifacts::{LlamaBuild, Store};
use ferry_tests::process;
use std::fmt::Write;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// What C calls it, and where we have it.
type Place = (String, usize);

/// Offsets of fields: `type in C, our type: their field = our field, …`.
macro_rules! places {
    ($($c:literal, $rust:ty: $($theirs:ident $(. $more:ident)* = $($ours:ident).+),*;)*) => {
        vec![$($((
            format!("offsetof({}, {})", $c, concat!(stringify!($theirs) $(, ".", stringify!($more))*)),
            offset_of!($rust, $($ours).+),
        )),*),*]
    };
}

/// What is the same in every generation that the store has a build of.
fn common() -> Vec<Place> {
    let mut places = places! {
        "struct ggml_tensor", Tensor: type = kind, buffer = buffer, ne = ne, nb = nb, op = op, op_params = op_params,
            flags = flags, src = src, view_src = view_src, view_offs = view_offs, data = data, name = name, extra = extra;
        "struct ggml_hash_set", HashSet: size = size, used = used, keys = keys;
        "struct ggml_cgraph", CGraph: size = size, n_nodes = n_nodes, n_leafs = n_leafs, nodes = nodes, leafs = leafs,
            use_counts = use_counts, visited_hash_set = visited, order = order, uid = uid;
        "struct ggml_backend_buffer", Buffer<BufferV2>: iface.free_buffer = iface.free_buffer,
            iface.get_base = iface.get_base, iface.init_tensor = iface.init_tensor,
            iface.memset_tensor = iface.memset_tensor, iface.set_tensor = iface.set_tensor,
            iface.get_tensor = iface.get_tensor, iface.cpy_tensor = iface.cpy_tensor, iface.clear = iface.clear,
            iface.reset = iface.reset, buft = buft, context = context, size = size, usage = usage;
        "struct ggml_backend", Backend<BackendV2b>: guid = guid, iface.get_name = iface.get_name,
            iface.set_tensor_async = iface.set_tensor_async, iface.get_tensor_async = iface.get_tensor_async,
            iface.cpy_tensor_async = iface.cpy_tensor_async, iface.synchronize = iface.synchronize,
            iface.graph_compute = iface.graph_compute, iface.event_wait = iface.event_wait,
            iface.graph_optimize = iface.graph_optimize, device = device, context = context;
        "struct ggml_backend_device", Device: iface = iface, reg = reg, context = context;
        "struct ggml_backend_device_i", DeviceInterface: get_memory = get_memory, get_props = get_props,
            init_backend = init_backend, get_buffer_type = get_buffer_type, supports_op = supports_op,
            supports_buft = supports_buft, event_synchronize = event_synchronize;
        "struct ggml_backend_reg", Reg: api_version = api_version, iface = iface, context = context;
        "struct ggml_backend_reg_i", RegInterface: get_device = get_device, get_proc_address = get_proc_address;
        "struct ggml_backend_dev_props", PropsV2: name = name, description = description, memory_free = memory_free,
            memory_total = memory_total, type = kind, device_id = device_id, caps = caps;
        "struct ggml_backend_dev_caps", Caps: async = async_, host_buffer = host_buffer, events = events;
    };
    places.push(("sizeof(struct ggml_tensor)".into(), size_of::<Tensor>()));
    places.push(("sizeof(struct ggml_cgraph)".into(), size_of::<CGraph>()));
    // The byte that the plug-in writes behind the four that older builds have.
    places.push(("offsetof(struct ggml_backend_dev_caps, mmap_support)".into(), size_of::<Caps>()));
    places
}

/// Prints each place, one a line, and compares.
fn compare(build: &LlamaBuild, places: &[Place]) {
    let mut source = String::from("#include <stddef.h>\n#include <stdio.h>\n#include \"ggml-impl.h\"\n");
    source.push_str("#include \"ggml-backend-impl.h\"\nint main(void) {\n");
    for (expression, _) in places {
        writeln!(source, "    printf(\"%zu\\n\", {expression});").unwrap();
    }
    source.push_str("}\n");
    let printed =
        compile_and_run(&source, &[&build.source.join("ggml/include"), &build.source.join("ggml/src")]);
    let theirs: Vec<usize> = printed.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(theirs.len(), places.len());
    for ((expression, ours), theirs) in places.iter().zip(theirs) {
        assert_eq!(*ours, theirs, "{expression} in {}", build.source.display());
    }
}

fn compile_and_run(source: &str, includes: &[&Path]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let (file, program) = (dir.path().join("layouts.c"), dir.path().join("layouts"));
    std::fs::write(&file, source).unwrap();
    let mut cc = Command::new("cc");
    // The headers have functions in them that need ggml; with -O1 those that nobody calls are left out.
    cc.args(["-std=gnu11", "-O1", "-o"]).arg(&program).arg(&file);
    for include in includes {
        cc.arg("-I").arg(include);
    }
    process::run(&mut cc, Duration::from_secs(60)).unwrap().success().unwrap();
    process::run(&mut Command::new(&program), Duration::from_secs(10)).unwrap().success().unwrap().stdout
}

#[test]
fn ggml_0_21_lays_its_structs_out_as_declared() {
    let mut places = common();
    places.extend(places! {
        "struct ggml_backend_buffer_type", BufferType<BufferTypeV1>: iface.get_name = iface.get_name,
            iface.alloc_buffer = iface.alloc_buffer, iface.get_alignment = iface.get_alignment,
            iface.get_max_size = iface.get_max_size, iface.get_alloc_size = iface.get_alloc_size,
            iface.is_host = iface.is_host, device = device, context = context;
    });
    compare(&Store::open().unwrap().llama().unwrap(), &places);
}

#[test]
fn ggml_0_26_lays_its_structs_out_as_declared() {
    let mut places = common();
    places.extend(places! {
        "struct ggml_backend_buffer_type", BufferType<BufferTypeV3>: iface.get_name = iface.get_name,
            iface.alloc_buffer = iface.alloc_buffer, iface.alloc_buffer_n = iface.alloc_buffer_n,
            iface.get_alignment = iface.get_alignment, iface.get_max_size = iface.get_max_size,
            iface.get_alloc_size = iface.get_alloc_size, iface.get_alloc_size_n = iface.get_alloc_size_n,
            iface.is_host = iface.is_host, device = device, context = context;
    });
    compare(&Store::open().unwrap().llama_next().unwrap(), &places);
}

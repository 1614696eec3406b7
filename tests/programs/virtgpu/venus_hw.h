/* virglrenderer's header, which ggml-virtgpu's build downloads, includes, and uses nothing of. */

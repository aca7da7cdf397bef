//! Turns `proto/nexo/v1/*.proto` into Rust, with a compiler that is a crate: building needs no `protoc`.

use std::path::PathBuf;

const FILES: [&str; 6] = [
    "nexo/v1/admin.proto",
    "nexo/v1/jobs.proto",
    "nexo/v1/messages.proto",
    "nexo/v1/queues.proto",
    "nexo/v1/stats.proto",
    "nexo/v1/users.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Asked for when it runs: a target folder may be shared by several checkouts.
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    for file in FILES {
        println!("cargo:rerun-if-changed={}", root.join(file).display());
    }
    // Comments are kept in this set, so that reflection shows them to whoever looks.
    let mut compiler = protox::Compiler::new([&root])?;
    compiler.include_imports(true).include_source_info(true).open_files(FILES)?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("nexo.v1.bin"), compiler.encode_file_descriptor_set())?;
    let mut config = tonic_prost_build::Config::new();
    config.enable_type_names();
    tonic_prost_build::configure()
        .bytes(".")
        .codec_path("crate::codec::BoundedCodec")
        .compile_fds_with_config(compiler.file_descriptor_set(), config)?;
    Ok(())
}

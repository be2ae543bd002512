//! Compiles the protos of the gRPC front end, without `protoc`.

use std::error::Error;
use std::path::PathBuf;

/// The services offered; what they import is found beside them.
const PROTOS: [&str; 1] = ["envoy/service/ratelimit/v3/rls.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from("proto");
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(PROTOS, [&root])?;
    tonic_prost_build::configure()
        .build_server(true)
        .build_client(true)
        .include_file("apis.rs")
        .compile_fds(files)?;
    Ok(())
}

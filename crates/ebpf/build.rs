//! Compiles the programs with clang where it is there. A build without it has none, and says so when one is asked for:
//! it never fails for that.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// A name in the crate, and the program's file.
const PROGRAMS: [(&str, &str); 2] = [("UNIFL", "unifl"), ("ROUTE", "route")];

fn main() {
    println!("cargo:rerun-if-changed=programs");
    println!("cargo:rerun-if-env-changed=CLANG");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    let mut code = String::new();
    for (name, program) in PROGRAMS {
        let object = out.join(program).with_extension("o");
        let found = match compile(Path::new("programs").join(program).with_extension("c").as_path(), &object)
        {
            Ok(()) => format!("Ok(aya::include_bytes_aligned!({object:?}))"),
            Err(why) => format!("Err({why:?})"),
        };
        code += &format!("pub(crate) const {name}: Result<&[u8], &str> = {found};\n");
    }
    if let Err(error) = fs::write(out.join("programs.rs"), code) {
        println!("cargo:warning=programs.rs: {error}");
    }
}

fn compile(source: &Path, object: &Path) -> Result<(), String> {
    if env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("linux") {
        return Err("eBPF is Linux's".into());
    }
    let clang = env::var("CLANG").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| "clang".into());
    let endian = env::var("CARGO_CFG_TARGET_ENDIAN").unwrap_or_default();
    let target = if endian == "big" { "bpfeb" } else { "bpfel" };
    let mut command = Command::new(&clang);
    command.args(["-O2", "-g", "-Wall", "-Werror", "-mcpu=v3", "-target", target]);
    // Where Debian has what the kernel's headers say of a processor; elsewhere it is among the others.
    let processor = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    command.arg(format!("-I/usr/include/{processor}-linux-gnu"));
    command.arg("-c").arg(source).arg("-o").arg(object);
    match command.output() {
        Err(error) => Err(format!("{clang} did not run: {error}")),
        Ok(done) if done.status.success() => Ok(()),
        Ok(done) => {
            Err(format!("{clang} did not compile it: {}", String::from_utf8_lossy(&done.stderr).trim()))
        }
    }
}

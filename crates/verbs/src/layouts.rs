//! The layouts of `abi.rs` beside those of the C headers.

use std::process::Command;

use crate::abi::{constant, layouts};

/// Compiles one C program that prints every offset, size and constant. Skipped where there is no compiler or no header
/// (Debian: libibverbs-dev; `C_INCLUDE_PATH` names another folder).
#[test]
fn layouts_are_those_of_the_headers() {
    let expected: Vec<_> = layouts().into_iter().chain(constant::all()).collect();
    let lines = expected.iter().map(|(what, _)| format!("printf(\"%zu\\n\", (size_t)({what}));\n"));
    let program = format!(
        "#include <infiniband/verbs.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {{\n{}return 0; }}\n",
        lines.collect::<String>()
    );
    let folder = std::env::temp_dir().join(format!("thalweg-layouts-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (source, binary) = (folder.join("layouts.c"), folder.join("layouts"));
    std::fs::write(&source, program).unwrap();
    let compiled = Command::new("cc").arg(&source).arg("-o").arg(&binary).output();
    let printed = compiled.map(|compiled| match compiled.status.success() {
        true => Ok(Command::new(&binary).output().unwrap().stdout),
        false => Err(String::from_utf8_lossy(&compiled.stderr).into_owned()),
    });
    std::fs::remove_dir_all(&folder).unwrap();
    match printed {
        Err(error) => println!("skipped: no C compiler: {error}"),
        Ok(Err(said)) if said.contains("infiniband/verbs.h: No such file") => {
            println!("skipped: no infiniband/verbs.h; install libibverbs-dev");
        }
        Ok(Err(said)) => panic!("{said}"),
        Ok(Ok(printed)) => {
            let text = String::from_utf8(printed).unwrap();
            let found: Vec<usize> = text.lines().map(|line| line.parse().unwrap()).collect();
            assert_eq!(found.len(), expected.len());
            for ((what, ours), theirs) in expected.into_iter().zip(found) {
                assert_eq!(ours, theirs, "{what}");
            }
        }
    }
}

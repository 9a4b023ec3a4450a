//! Compiles the programs for this machine and runs them outside the kernel. Their answers must be those of
//! the test vectors, which hold for both back ends (crates/masking/tests/vectors). The crates masking and
//! unifl test the other back end.
#![allow(clippy::unwrap_used)] // a panic is how tests report

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

/// Runs the programs with these commands, and returns their answers, one line each. `None` if there is no C
/// compiler. `test` names the compiled file, because tests run at the same time.
fn answers(test: &str, commands: &[String]) -> Option<Vec<String>> {
    let (root, folder) = (env!("CARGO_MANIFEST_DIR"), env!("CARGO_TARGET_TMPDIR"));
    let program = Path::new(folder).join(test);
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let mut compile = Command::new(&compiler);
    compile.args(["-std=gnu11", "-O1", "-Wall", "-Werror", "-Wno-unused-function", "-o"]).arg(&program);
    match compile.arg(Path::new(root).join("tests/vectors.c")).output() {
        Err(error) => {
            println!("skipped: {compiler} did not run: {error}");
            return None;
        }
        Ok(compiled) => {
            assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        }
    }
    let mut run = Command::new(&program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let input: String = commands.iter().map(|command| format!("{command}\n")).collect();
    run.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = run.wait_with_output().unwrap();
    assert!(output.status.success(), "the programs do not know a command");
    Some(String::from_utf8(output.stdout).unwrap().lines().map(String::from).collect())
}

fn cases(vectors: &str) -> (Value, Vec<Value>) {
    let vectors: Value = serde_json::from_str(vectors).unwrap();
    let cases = vectors["cases"].as_array().unwrap().clone();
    assert!(!cases.is_empty());
    (vectors, cases)
}

/// The answer that the programs must give: `expect`, or the value of `ebpf` where they are known to differ.
fn wanted<'a>(of: &'a Value, expect: &str) -> &'a Value {
    of.get("ebpf").inspect(|_| assert!(of["why"].is_string(), "{of}")).unwrap_or(&of[expect])
}

/// Writes numbers and truth values one after the other, with those in lists.
fn words(values: &[&Value]) -> String {
    let numbers = values.iter().flat_map(|value| match value {
        Value::Array(list) => list.iter().map(|value| words(&[value])).collect(),
        Value::Bool(yes) => vec![u8::from(*yes).to_string()],
        number => vec![number.as_u64().unwrap().to_string()],
    });
    numbers.collect::<Vec<String>>().join(" ")
}

#[test]
fn segments_are_read_alike() {
    let (_, cases) = cases(include_str!("../../masking/tests/vectors/segments.json"));
    let commands: Vec<String> =
        cases.iter().map(|case| format!("segment {}", case["packet"].as_str().unwrap())).collect();
    let Some(answers) = answers("segments", &commands) else { return };
    assert_eq!(answers.len(), cases.len());
    for (case, answer) in cases.iter().zip(answers) {
        let wanted = wanted(case, "expect");
        let wanted = if wanted.is_null() {
            "null".into()
        } else {
            let stamps = wanted["stamps"].as_array().cloned().unwrap_or_default();
            let (value, echo) = (stamps.first().cloned(), stamps.get(1).cloned());
            let [value, echo] = [value, echo].map(|word| word.unwrap_or(Value::from(0)));
            let mut fields = vec![
                &wanted["sequence"],
                &wanted["acknowledgement"],
                &wanted["flags"],
                &wanted["window"],
                &wanted["payload"],
            ];
            let stamped = Value::from(!stamps.is_empty());
            fields.extend([&stamped, &value, &echo, &wanted["scale"], &wanted["largest"]]);
            fields.extend(wanted["sack"].as_array().unwrap());
            words(&fields)
        };
        assert_eq!(answer, wanted, "{}", case["name"]);
    }
}

#[test]
fn frames_are_followed_alike() {
    let (_, cases) = cases(include_str!("../../masking/tests/vectors/frames.json"));
    let (mut commands, mut steps) = (Vec::new(), Vec::new());
    for case in &cases {
        commands.push("stream".to_string());
        for step in case["steps"].as_array().unwrap() {
            commands.push(format!("frame {} {}", step["at"], step["header"].as_str().unwrap()));
            steps.push((case, step));
        }
    }
    let Some(answers) = answers("frames", &commands) else { return };
    assert_eq!(answers.len(), steps.len());
    for ((case, step), answer) in steps.into_iter().zip(answers) {
        let position = wanted(step, "expect");
        let fields = ["head", "payload", "update_from", "offset", "top"].map(|name| &position[name]);
        assert_eq!(answer, words(&fields), "{}: {step}", case["name"]);
    }
}

#[test]
fn echoes_are_chosen_alike() {
    let (vectors, cases) = cases(include_str!("../../masking/tests/vectors/echoes.json"));
    let (mut commands, mut acks) = (Vec::new(), Vec::new());
    for case in &cases {
        commands.push(format!("flow {} {}", case["first"], vectors["trip"]));
        for step in case["steps"].as_array().unwrap() {
            let of = |name: &str| step.get(name).map(|values| words(&[values]));
            let data = of("data").map(|data| format!("data 0 {data}"));
            let fills = of("fills").map(|data| format!("data 1 {data}"));
            let report = of("told").map(|report| format!("told {report}"));
            let ack = of("ack").map(|ack| {
                acks.push((case, step));
                format!("ack {ack} {}", words(&[&step["missing"], &step["goes_on"]]))
            });
            commands.push(data.or(fills).or(report).or(ack).unwrap());
        }
    }
    let Some(answers) = answers("echoes", &commands) else { return };
    assert_eq!(answers.len(), acks.len());
    for ((case, step), answer) in acks.into_iter().zip(answers) {
        let repairing = Value::from(!step["ends"].as_bool().unwrap_or(false));
        assert_eq!(answer, words(&[wanted(step, "echo"), &repairing]), "{}: {step}", case["name"]);
    }
}

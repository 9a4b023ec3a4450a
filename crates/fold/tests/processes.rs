//! Worker processes fold into memory that they share with their parent. The parent merges the sums from
//! there. This test starts itself as the workers, so it has no test harness.

#![allow(clippy::unwrap_used)]

mod common;

#[cfg(target_os = "linux")]
fn main() {
    match std::env::var(linux::WORKER) {
        Ok(number) => linux::work(number.parse().unwrap()),
        Err(_) => linux::a_tree_of_processes_gives_the_same_bits(),
    }
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("skipped: memory is shared on Linux only");
}

#[cfg(target_os = "linux")]
mod linux {
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::process::{Command, Stdio};
    use std::sync::Arc;

    use thalweg_arena::{Access, Arena};
    use thalweg_fold::{Accumulator, LentMemory, Precision, Replacement, SumsHead};
    use thalweg_wire::{Dtype, Layout};

    use crate::common::update;

    pub const WORKER: &str = "THALWEG_FOLD_WORKER";
    const WORKERS: u64 = 3;
    const CLIENTS: u64 = 4;

    fn layout() -> Arc<Layout> {
        let tensors =
            [("h", Dtype::BF16, vec![777]), ("w", Dtype::F32, vec![90_000]), ("n", Dtype::I64, vec![2])];
        Arc::new(Layout::pack(tensors).unwrap())
    }

    /// The clients of one worker. Its last client sends at most half of its update.
    fn fold(accumulator: &Accumulator, worker: u64) {
        for client in 0..CLIENTS {
            let bytes = update(accumulator.layout(), 100 * worker + client + 1);
            let sent = if client + 1 == CLIENTS { bytes.len() / 2 / 8 * 8 } else { bytes.len() };
            accumulator.fold(0, &bytes[..sent], 0.1 + client as f64).unwrap();
        }
    }

    fn finish(accumulator: &Accumulator) -> Vec<u8> {
        let mut out = vec![0; accumulator.layout().bytes() as usize];
        accumulator.finish(&mut out, Replacement::Zero).unwrap();
        out
    }

    /// Folds into the shared memory on standard input, and writes the head of the sums to standard output.
    pub fn work(number: u64) {
        let descriptor = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
        let needed = Accumulator::bytes_needed(&layout(), Precision::Exact);
        let arena = Arena::of_fd(descriptor, needed, Access::Write).unwrap();
        let mut claim = arena.claim(arena.range()).unwrap();
        let cut = |bytes| claim.split_to(bytes as u64).map(|part| Box::new(part) as LentMemory);
        let accumulator = Accumulator::within(layout(), Precision::Exact, cut).unwrap();
        fold(&accumulator, number);
        std::io::stdout().write_all(&accumulator.head().unwrap().encode()).unwrap();
    }

    pub fn a_tree_of_processes_gives_the_same_bits() {
        let needed = Accumulator::bytes_needed(&layout(), Precision::Exact);
        let start = |worker| {
            let arena = Arena::shared(needed, Access::Write).unwrap();
            let memory = arena.descriptor().unwrap().try_clone_to_owned().unwrap();
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.env(WORKER, u64::to_string(&worker)).stdin(Stdio::from(memory)).stdout(Stdio::piped());
            (arena, command.spawn().unwrap())
        };
        let workers: Vec<_> = (0..WORKERS).map(start).collect();
        let (root, single) =
            (Accumulator::new(layout(), Precision::Exact), Accumulator::new(layout(), Precision::Exact));
        (0..WORKERS).for_each(|worker| fold(&single, worker));
        for (arena, child) in workers {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{output:?}");
            let head = SumsHead::decode(&output.stdout).unwrap();
            root.merge_sums(&head, &arena.lend(arena.range()).unwrap()).unwrap();
        }
        assert!(finish(&root) == finish(&single));
        assert_eq!(root.weights(), single.weights());
        assert_eq!(root.weight_runs().unwrap()[0].contributions, (WORKERS * CLIENTS) as u32);
        println!("test a_tree_of_processes_gives_the_same_bits ... ok");
    }
}

//! The process's one tokio runtime, and the set of tasks that one server or client runs on it.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::watch;

use crate::{lock, Error, Kind};

/// The runtime and the id of the process that made it. After a fork, the child has no thread of the parent's
/// runtime.
static RUNTIME: Mutex<Option<(u32, Runtime)>> = Mutex::new(None);

fn system(error: &std::io::Error) -> Error {
    Error::new(Kind::System, "start runtime", error.to_string())
}

/// A handle to this process's runtime. The first call makes it.
fn handle() -> Result<Handle, Error> {
    let mut runtime = lock(&RUNTIME);
    let process = std::process::id();
    match &*runtime {
        Some((maker, runtime)) if *maker == process => return Ok(runtime.handle().clone()),
        _ => {}
    }
    // If tokio cannot start its threads, it aborts the process instead of returning an error. So check for
    // room and try one thread first.
    thalweg_arena::room(0)?;
    let first = std::thread::Builder::new().spawn(|| {}).map_err(|e| system(&e))?;
    _ = first.join();
    let made = Builder::new_multi_thread()
        .worker_threads(std::thread::available_parallelism().map_or(2, usize::from).clamp(2, 16))
        .thread_name("thalweg")
        .enable_all()
        .build()
        .map_err(|e| system(&e))?;
    let handle = made.handle().clone();
    // Forget the parent's runtime: its threads are not in this process, so it cannot be shut down here.
    if let Some((_, of_parent)) = runtime.replace((process, made)) {
        std::mem::forget(of_parent);
    }
    Ok(handle)
}

/// The tasks of one server or client. They end together, at the latest when the last handle is dropped.
#[derive(Debug, Clone)]
pub(crate) struct TaskSet {
    handle: Handle,
    stop: Arc<watch::Sender<bool>>,
}

impl TaskSet {
    /// An empty set of tasks.
    ///
    /// # Errors
    /// `system` if the system starts no threads for a runtime.
    pub fn new() -> Result<Self, Error> {
        Ok(Self { handle: handle()?, stop: Arc::new(watch::Sender::new(false)) })
    }

    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Starts a task. [`TaskSet::dismiss`] drops it at its next await point.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut stopped = self.stop.subscribe();
        self.handle.spawn(async move {
            tokio::select! {
                _ = stopped.wait_for(|stopped| *stopped) => {}
                () = task => {}
            }
        });
    }

    /// Ends all tasks, and waits at most `timeout` until they have ended.
    pub fn dismiss(&self, timeout: Duration) {
        self.stop.send_replace(true);
        let all_closed = async { _ = tokio::time::timeout(timeout, self.stop.closed()).await };
        self.handle.block_on(all_closed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Records in the flag that this value was dropped.
    struct Flag(Arc<AtomicBool>);

    impl Drop for Flag {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    #[test]
    fn tasks_end_with_their_task_set_and_the_runtime_goes_on() {
        let (one, other) = (TaskSet::new().unwrap(), TaskSet::new().unwrap());
        let ended = [Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false))];
        for (task_set, ended) in [(&one, &ended[0]), (&other, &ended[1])] {
            let flag = Flag(ended.clone());
            task_set.spawn(async move {
                let _flag = flag;
                std::future::pending::<()>().await;
            });
        }
        one.dismiss(Duration::from_secs(60));
        assert!(ended[0].load(Ordering::SeqCst));
        assert!(!ended[1].load(Ordering::SeqCst), "of another task set");
        assert_eq!(other.handle().block_on(async { 7 }), 7);
        other.dismiss(Duration::from_secs(60));
        assert!(ended[1].load(Ordering::SeqCst));
    }
}

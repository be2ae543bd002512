//! Several futures at once, in the caller's own task.

use std::future::poll_fn;
use std::task::Poll;

/// Runs the futures at the same time until all are done; their results in the same order.
///
/// Each is polled whenever the task wakes: they are the shards of one request, and few.
pub(super) async fn all<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut running: Vec<_> = futures
        .into_iter()
        .map(|future| (None, Box::pin(future)))
        .collect();
    poll_fn(|context| {
        let mut all_done = true;
        for (done, future) in &mut running {
            if done.is_none() {
                match future.as_mut().poll(context) {
                    Poll::Ready(result) => *done = Some(result),
                    Poll::Pending => all_done = false,
                }
            }
        }
        if all_done {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    running.into_iter().filter_map(|(done, _)| done).collect()
}

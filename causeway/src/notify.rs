//! Notifications to the service manager (sd_notify(3)): `systemctl start` returns when the gateway is ready, and
//! `systemctl status` shows that it stops or reloads.
//!
//! Without `NOTIFY_SOCKET`, such as outside of systemd, nothing is sent.

use sd_notify::NotifyState;

/// The gateway answers requests.
pub fn ready() {
    send(&[NotifyState::Ready]);
}

/// The gateway reads its settings again; [`ready`] ends this.
pub fn reloading() {
    let now = NotifyState::monotonic_usec_now();
    send(&[NotifyState::Reloading].into_iter().chain(now).collect::<Vec<_>>());
}

/// The gateway drains, and ends.
pub fn stopping() {
    send(&[NotifyState::Stopping]);
}

fn send(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "the service manager cannot be notified (NOTIFY_SOCKET)");
    }
}

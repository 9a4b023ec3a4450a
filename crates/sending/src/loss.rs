//! Estimates the RTT, and decides when a packet counts as lost (RFC 9002, sections 5 and 6).

use crate::Time;

/// The RTT before the first sample.
const INITIAL_RTT: Time = Time::from_millis(100);
/// Timer granularity (kGranularity).
const GRANULARITY: Time = Time::from_millis(1);
/// Allowance for the time that a busy receiver takes to acknowledge.
const ACK_DELAY: Time = Time::from_millis(20);
/// Initial packet threshold: a packet is lost if one this many numbers later was acknowledged
/// (kPacketThreshold).
const MIN_PACKETS: u64 = 3;
/// Maximum of the packet threshold, which rises on a path that reorders.
const MAX_PACKETS: u64 = 1024;
/// Initial time threshold in eighths of an RTT: a packet is lost if a later one was acknowledged and this
/// time has passed (kTimeThreshold).
const MIN_EIGHTHS: u32 = 9;
/// Maximum of the time threshold in eighths of an RTT. The threshold rises on a path that reorders.
const MAX_EIGHTHS: u32 = 16;
/// The delay of a packet that wrongly counted as lost raises the time threshold, to at most this many RTTs.
const MAX_LATE_RTTS: u32 = 4;
/// With each RTT sample, that delay decays by one part in this many.
const LATE_DECAY: u32 = 256;
/// Minimum pause between unanswered probes. The pause is a quarter of an RTT for as many probes as one needs
/// to get an answer ([`Trips::lossy`]). After that, each pause is a twentieth longer than the one before. RFC
/// 9002 doubles the pause. But a path that loses 80 % in both directions answers one probe in 25, so the
/// sender would then stand still for minutes. A probe has some 60 bytes.
const MIN_PROBE_PAUSE: Time = Time::from_millis(10);
/// Factor from one pause to the next, once pauses grow.
const PROBE_PAUSE_GROWTH: f64 = 1.05;
/// Number of probes before pauses grow, while the loss rate is not known.
const INITIAL_STEADY_PROBES: u32 = 30;
/// Maximum pause between unanswered probes, or one probe timeout if that is longer. So a transfer continues
/// soon after an outage, and during the outage the probes take only 3 kbit/s.
const MAX_PROBE_PAUSE: Time = Time::from_millis(250);

/// RTT and reordering of a path.
#[derive(Debug)]
pub struct Trips {
    smooth: Option<Time>,
    variation: Time,
    latest: Time,
    packets: u64,
    eighths: u32,
    /// The greatest delay of a packet that wrongly counted as lost, plus an eighth. It decays.
    late: Time,
    /// Number of probes since the last ACK.
    unanswered: u32,
    /// Number of unanswered probes before the pauses grow.
    steady: u32,
}

impl Default for Trips {
    fn default() -> Self {
        Self::new()
    }
}

impl Trips {
    /// Creates the estimates, without any sample.
    pub fn new() -> Self {
        let (smooth, variation, latest) = (None, INITIAL_RTT / 2, INITIAL_RTT);
        Self {
            smooth,
            variation,
            latest,
            packets: MIN_PACKETS,
            eighths: MIN_EIGHTHS,
            late: Time::ZERO,
            unanswered: 0,
            steady: INITIAL_STEADY_PROBES,
        }
    }

    /// The smoothed RTT.
    pub fn smooth(&self) -> Option<Time> {
        self.smooth
    }

    /// The variation of the RTT.
    pub fn variation(&self) -> Time {
        self.variation
    }

    /// The last RTT sample.
    pub fn latest(&self) -> Time {
        self.latest
    }

    /// The retransmission timeout (RFC 6298, section 2), without its bounds.
    pub fn timeout(&self) -> Option<Time> {
        self.smooth.map(|smooth| smooth + (4 * self.variation).max(GRANULARITY))
    }

    /// Processes an RTT sample (RFC 9002, section 5.3).
    pub fn measured(&mut self, trip: Time) {
        self.latest = trip;
        self.late -= self.late / LATE_DECAY;
        match self.smooth {
            None => (self.smooth, self.variation) = (Some(trip), trip / 2),
            Some(smooth) => {
                self.variation = (3 * self.variation + smooth.abs_diff(trip)) / 4;
                self.smooth = Some((7 * smooth + trip) / 8);
            }
        }
    }

    /// The packet threshold (RFC 9002, section 6.1.1).
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// The time threshold: how long after it was sent a packet counts as lost, if a later one was
    /// acknowledged (RFC 9002, section 6.1.2).
    pub fn time_threshold(&self) -> Time {
        let trip = self.smooth.unwrap_or(INITIAL_RTT).max(self.latest);
        (trip * self.eighths / 8).max(self.late.min(MAX_LATE_RTTS * trip)).max(GRANULARITY)
    }

    /// Notes that a packet that had counted as lost was acknowledged after a packet `distance` numbers later.
    /// Raises both thresholds. RFC 9002, section 6.1.1, allows that, and RACK does it (RFC 8985, section
    /// 6.2).
    pub fn reordered(&mut self, distance: u64) {
        self.packets = self.packets.max(distance + 1).min(MAX_PACKETS);
        self.eighths = (self.eighths + 1).min(MAX_EIGHTHS);
    }

    /// Notes that a packet that had counted as lost was acknowledged `trip` after it was sent. From now on
    /// the time threshold is at least `trip`, until it decays. So it follows the reordering of the path, as
    /// in RACK (RFC 8985, section 6.2, step 4).
    pub fn late(&mut self, trip: Time) {
        self.late = self.late.max(trip + trip / 8);
    }

    /// The probe timeout (PTO, RFC 9002, section 6.2.1).
    pub fn probe_after(&self) -> Time {
        let variation = (4 * self.variation).max(GRANULARITY);
        let first = self.smooth.unwrap_or(INITIAL_RTT) + variation + ACK_DELAY;
        if self.unanswered == 0 {
            return first;
        }
        let pause = (self.smooth.unwrap_or(INITIAL_RTT) / 4).max(MIN_PROBE_PAUSE);
        let longer = self.unanswered.saturating_sub(self.steady).min(200);
        pause.mul_f64(PROBE_PAUSE_GROWTH.powi(longer as i32)).min(MAX_PROBE_PAUSE.max(first))
    }

    /// Sets how many unanswered probes are sent before the pauses grow. It should be the number of probes
    /// that one needs to get an answer.
    pub fn lossy(&mut self, probes: u32) {
        self.steady = probes;
    }

    /// Notes that a probe was sent.
    pub fn probed(&mut self) {
        self.unanswered = self.unanswered.saturating_add(1);
    }

    /// Notes that an ACK arrived. The next probe again waits only as long as the first one.
    pub fn answered(&mut self) {
        self.unanswered = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Time = Time::from_millis(1);

    #[test]
    fn the_first_measurement_is_taken_as_it_is() {
        let mut trips = Trips::new();
        trips.measured(40 * MS);
        assert_eq!((trips.smooth(), trips.time_threshold()), (Some(40 * MS), 45 * MS));
        assert_eq!(trips.probe_after(), 40 * MS + 4 * 20 * MS + ACK_DELAY);
        for _ in 0..100 {
            trips.measured(40 * MS);
        }
        assert!(trips.probe_after() < 40 * MS + 2 * MS + ACK_DELAY, "{:?}", trips.probe_after());
        trips.measured(80 * MS);
        assert_eq!((trips.smooth(), trips.time_threshold()), (Some(45 * MS), 90 * MS));
    }

    #[test]
    fn unanswered_probes_follow_soon_and_become_rarer_slowly() {
        let mut trips = Trips::new();
        trips.measured(10 * MS);
        let mut pauses = Vec::new();
        for _ in 0..200 {
            pauses.push(trips.probe_after());
            trips.probed();
        }
        let (first, again) = pauses.split_first().unwrap();
        assert!(again.is_sorted() && again[198] == MAX_PROBE_PAUSE, "{pauses:?}");
        assert!(*first > again[0], "the first probe waits for an answer that is on its way");
        let short = |pauses: &[Time]| pauses.iter().filter(|&&pause| pause == MIN_PROBE_PAUSE).count();
        assert_eq!(short(again), INITIAL_STEADY_PROBES as usize, "{pauses:?}");
        trips.answered();
        assert_eq!(trips.probe_after(), pauses[0]);
        trips.lossy(5);
        (0..5).for_each(|_| trips.probed());
        assert_eq!(trips.probe_after(), MIN_PROBE_PAUSE);
        trips.probed();
        assert_eq!(trips.probe_after(), MIN_PROBE_PAUSE.mul_f64(PROBE_PAUSE_GROWTH));
    }

    #[test]
    fn a_late_packet_raises_the_time_threshold_for_a_while() {
        let mut trips = Trips::new();
        trips.measured(40 * MS);
        trips.late(80 * MS);
        assert_eq!(trips.time_threshold(), 90 * MS);
        trips.measured(40 * MS);
        assert!(trips.time_threshold() > 89 * MS);
        (0..300).for_each(|_| trips.measured(40 * MS));
        assert_eq!(trips.time_threshold(), 45 * MS, "the path reorders no more");
        trips.late(Time::from_secs(9));
        assert_eq!(trips.time_threshold(), MAX_LATE_RTTS * 40 * MS);
    }

    #[test]
    fn reordering_raises_the_thresholds_within_bounds() {
        let mut trips = Trips::new();
        trips.measured(8 * MS);
        trips.reordered(7);
        assert_eq!((trips.packets(), trips.time_threshold()), (8, 10 * MS));
        for _ in 0..100 {
            trips.reordered(u64::from(u32::MAX));
        }
        assert_eq!((trips.packets(), trips.time_threshold()), (MAX_PACKETS, 16 * MS));
    }
}

//! How updates and sums get between a node and its workers. All ways but the pool copy; they need the feature
//! `baselines`.

/// How updates and sums get between a node and its workers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Carriage {
    /// In memory that the node and the workers share.
    #[default]
    Pool,
    /// Copied over a socket.
    Sockets,
    /// Copied over sockets, through a broker.
    Broker,
}

/// A node's data plane.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DataPlane {
    /// How updates and sums get between the node and its workers.
    pub carriage: Carriage,
    /// Whether a side process passes on everything that a worker receives and sends.
    pub side_process: bool,
}

impl DataPlane {
    /// Number of processes that each message passes through.
    pub fn hops(&self) -> usize {
        usize::from(self.carriage == Carriage::Broker) + usize::from(self.side_process)
    }

    /// Whether workers get copies of updates, and the node gets copies of their sums.
    pub fn copies(&self) -> bool {
        self.carriage != Carriage::Pool || self.side_process
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_travels_follows_from_the_data_plane() {
        let plane = |carriage, side_process| DataPlane { carriage, side_process };
        let told = |plane: DataPlane| (plane.hops(), plane.copies());
        assert_eq!(told(plane(Carriage::Pool, false)), (0, false));
        assert_eq!(told(plane(Carriage::Pool, true)), (1, true));
        assert_eq!(told(plane(Carriage::Sockets, false)), (0, true));
        assert_eq!(told(plane(Carriage::Broker, true)), (2, true));
    }
}

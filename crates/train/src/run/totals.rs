//! Figures over all ranks, from what each of them has: small reductions on the host.

use super::gradients::LossSums;
use crate::collective::{Collective, CollectiveError, Group, Reduce};

/// The rank that took longest for a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slowest {
    /// Its number.
    pub rank: usize,
    /// Wall seconds of its step.
    pub seconds: f64,
}

/// Adds up loss sums of the ranks' rows, and sums of squares of the ranks' shards: those of one copy of the model.
///
/// # Errors
/// [`CollectiveError`], as all functions here: another rank is gone.
pub fn of_gradients(
    collective: &dyn Collective,
    loss: LossSums,
    squares: f64,
) -> Result<(LossSums, f64), CollectiveError> {
    let squares = in_one_copy(collective, squares);
    let mut values = [loss.xent, loss.z_loss, loss.total_weights, squares];
    collective.reduce(Reduce::Sum, &mut values)?;
    let [xent, z_loss, total_weights, squares] = values;
    Ok((LossSums { xent, z_loss, total_weights }, squares))
}

/// Adds up the sums of squares of the ranks' shards, and tells who was slowest; nobody is alone.
pub fn of_update(
    collective: &dyn Collective,
    squares: f64,
    seconds: f64,
) -> Result<(f64, Option<Slowest>), CollectiveError> {
    let mesh = collective.mesh();
    // Slot r is that of rank r.
    let mut values = vec![0.0; mesh.size(Group::World) + 1];
    values[mesh.rank] = seconds;
    *values.last_mut().expect("there is one more") = in_one_copy(collective, squares);
    collective.reduce(Reduce::Sum, &mut values)?;

    let squares = values.pop().expect("there is one more");
    let slowest = values.into_iter().enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b));
    let slowest = slowest.map(|(rank, seconds)| Slowest { rank, seconds });
    Ok((squares, slowest.filter(|_| mesh.size(Group::World) > 1)))
}

/// Adds up loss sums of the ranks' rows.
pub fn of_losses(collective: &dyn Collective, loss: LossSums) -> Result<LossSums, CollectiveError> {
    Ok(of_gradients(collective, loss, 0.0)?.0)
}

/// Whether it is so on any rank.
pub fn any(collective: &dyn Collective, here: bool) -> Result<bool, CollectiveError> {
    let mut values = [f64::from(u8::from(here))];
    collective.reduce(Reduce::Max, &mut values)?;
    Ok(values[0] > 0.0)
}

/// `value` on the ranks of the first copy, else 0: copies are equal, one counts.
fn in_one_copy(collective: &dyn Collective, value: f64) -> f64 {
    if collective.mesh().index(Group::Data) == 0 { value } else { 0.0 }
}

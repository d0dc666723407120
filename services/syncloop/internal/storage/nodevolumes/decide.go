package nodevolumes

// step is the next step of a volume that Run takes.
type step int

// The steps.
const (
	// stay: nothing is to be done.
	stay step = iota
	// begin: the claim is to have a volume without waiting for a pod, and there is none.
	begin
	// finish: the claim was deleted while the volume was being made. It is made, because only then it can be deleted.
	finish
	// detach: no pod uses the volume, and it is attached.
	detach
	// remove: the claim was deleted, and the volume is not to be retained.
	remove
	// expand: the claim is larger than the volume.
	expand
)

// state is what the next step of a volume depends on.
type state struct {
	// phase is empty before the driver is asked.
	phase phase
	// isImmediate is true if the claim is to have a volume without waiting for a pod.
	isImmediate bool
	// isReleased is true if the claim was deleted, and isRetained if the volume stays then.
	isReleased, isRetained bool
	// isAttached is true if the driver was asked to attach the volume.
	isAttached bool
	// inUse is true if the volume is staged or published, or about to be.
	inUse bool
	// grows is true if the claim is larger than the volume.
	grows bool
}

// next returns the next step. A volume that may be in use is neither detached nor deleted.
func next(s state) step {
	switch {
	case s.phase == asked && s.isReleased:
		return finish
	case s.phase != made && s.isImmediate:
		return begin
	case s.phase != made:
		return stay // who wants it makes it
	case s.inUse && s.grows && !s.isReleased:
		return expand
	case s.inUse:
		return stay
	case s.isAttached:
		return detach
	case s.isReleased && s.isRetained, !s.isReleased && !s.grows:
		return stay
	case s.isReleased:
		return remove
	default:
		return expand
	}
}

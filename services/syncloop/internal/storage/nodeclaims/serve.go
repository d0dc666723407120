package nodeclaims

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/google/uuid"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// errDeleting is the kubelet's error.
var errDeleting = errors.New("PVC is being deleted")

// errUnread is returned until the records are read.
var errUnread = errors.New("the claims of this node cannot be read: see the log of syncloop")

// localVolumes is the kubelet's directory of the volumes of claims that are directories, below that of a pod, and
// classVolumes and classDevices those of the volumes of storage classes.
const (
	localVolumes = "volumes/kubernetes.io~local-volume"
	classVolumes = "volumes/kubernetes.io~csi"
	classDevices = "volumeDevices/kubernetes.io~csi"
)

// serve answers a call.
func (c *Claims) serve(r request, loaded bool) answer {
	if !loaded {
		return answer{err: errUnread}
	}
	k, isEphemeral, is := claimOf(r.pod, r.volume)
	if !is {
		return answer{err: fmt.Errorf("volume %q has no claim", r.volume.Name)}
	}
	wanted, err := c.wanted(k, isEphemeral, r)
	if err != nil {
		return answer{err: err}
	}
	given, err := c.give(k, wanted, r.pod.UID)
	if err != nil {
		return answer{err: err}
	}
	if given.hasClass() {
		return answer{claim: given.claim()}
	}
	claim, pv := boundTo(given, c.disk.path(k))
	return answer{claim: claim, pv: pv}
}

// wanted returns the claim that a pod is to get; nil if it has to be the one whose directory there is.
func (c *Claims) wanted(k key, isEphemeral bool, r request) (*record, error) {
	document, err := c.documents.Claim(k.namespace, k.name)
	known := c.records[k]
	if !isEphemeral {
		return c.wantedDocument(document, err, known, r.pod)
	}
	switch {
	case known != nil && known.Owner == r.pod.UID:
		return known, nil
	case err == nil, known != nil:
		// Possibly that of a pod of the same name, which is being removed.
		return nil, notOwner(k, r.pod)
	case !apierrors.IsNotFound(err):
		return nil, err
	}
	return &record{Claim: templated(k, r.pod, r.volume), Owner: r.pod.UID}, nil
}

// wantedDocument returns the claim of a document.
func (c *Claims) wantedDocument(
	document *v1.PersistentVolumeClaim, err error, known *record, pod *v1.Pod,
) (*record, error) {
	switch {
	case known != nil && known.Owner != "":
		return nil, fmt.Errorf("the claim %s is that of an ephemeral volume of another pod: name another", keyOf(known))
	case err == nil && (known == nil || known.uid() == document.UID):
		changed := checkUnchanged(known, document)
		switch {
		case changed == nil:
			return &record{Claim: document}, nil
		case c.uses(known, pod.UID):
			return known, nil
		}
		return nil, changed
	case known != nil && c.uses(known, pod.UID):
		return known, nil // the claim was deleted, and is removed after the pod
	case err == nil && c.documents.Unread() != "":
		return nil, fmt.Errorf("the claim is not known yet: %s", c.documents.Unread())
	case known != nil && (err == nil || apierrors.IsNotFound(err)):
		signal(c.wake)
		return nil, errDeleting // the pod is notified when the claim is removed
	case known != nil:
		return known, nil // it was there, and nobody says that it is not
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("%w: apply it, or write it into the manifest of the pod", err)
	default:
		return nil, err
	}
}

// notOwner returns the kubelet's error for the claim of another pod.
func notOwner(k key, pod *v1.Pod) error {
	return fmt.Errorf("PVC %s/%s was not created for pod %s/%s (pod is not owner)", k.namespace, k.name, pod.Namespace, pod.Name)
}

// templated returns the claim of an ephemeral volume.
func templated(k key, pod *v1.Pod, volume *v1.Volume) *v1.PersistentVolumeClaim {
	claim := &v1.PersistentVolumeClaim{}
	if template := volume.Ephemeral.VolumeClaimTemplate; template != nil {
		claim.Labels, claim.Annotations = template.Labels, template.Annotations
		claim.Spec = template.Spec
	}
	claim.Namespace, claim.Name, claim.UID = k.namespace, k.name, types.UID(uuid.NewString())
	claim.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(pod, v1.SchemeGroupVersion.WithKind("Pod"))}
	return claim.DeepCopy()
}

// give gives a claim to a pod, and makes its directory if it is new.
func (c *Claims) give(k key, wanted *record, pod types.UID) (*record, error) {
	known := c.records[k]
	switch {
	case known != nil && known.isDeleted() && !c.uses(known, pod):
		return nil, errDeleting
	case known != nil && !c.isUser(known, pod) && isExclusive(known.Claim):
		used, err := c.usedByAnother(known, pod)
		if err != nil {
			return nil, err
		}
		if used {
			return nil, &volumes.InUseError{}
		}
	}
	known, err := c.renewed(k, known, wanted)
	if err != nil {
		return nil, err
	}
	if !known.made && !known.hasClass() {
		if err := c.makeLimited(k, known); err != nil {
			return nil, err
		}
		c.cfg.Logger.Info("a claim has its directory", keyClaim, k, "dir", c.disk.path(k))
		known.made = true
	}
	c.enforce(k, known)
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, registered := c.pods[pod]; registered {
		known.users[pod] = true
	}
	return known, nil
}

// renewed returns the record of a claim, which it writes if it is new or has changed.
func (c *Claims) renewed(k key, known, wanted *record) (*record, error) {
	if known != nil && (known.isDeleted() || equality.Semantic.DeepEqual(known.Claim, wanted.Claim)) {
		return known, nil
	}
	fresh := &record{}
	if known != nil {
		*fresh = *known
	} else {
		project, err := c.reserve(k, wanted)
		if err != nil {
			return nil, err
		}
		*fresh = record{
			Owner: wanted.Owner, CreatedAt: c.cfg.Clock.Now().UTC(), Project: project,
			users: map[types.UID]bool{}, unenforced: errNotChecked,
		}
	}
	fresh.Claim = wanted.Claim
	if err := c.disk.save(k, fresh); err != nil {
		return nil, err
	}
	c.set(k, fresh)
	return fresh, nil
}

func (c *Claims) set(k key, r *record) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.records[k] = r
}

// uses reports whether a pod has got a claim, from this process or from an earlier one.
func (c *Claims) uses(r *record, pod types.UID) bool {
	if c.isUser(r, pod) {
		return true
	}
	has, _ := c.hasVolume(string(pod), r)
	return has
}

// isUser reports whether this process has given a claim to a pod.
func (c *Claims) isUser(r *record, pod types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return r.users[pod]
}

// hasUser reports whether this process has given a claim to a pod other than the given one.
func (c *Claims) hasUser(r *record, but types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for uid := range r.users {
		if uid != but {
			return true
		}
	}
	return false
}

// usedByAnother reports whether a pod other than the given one uses a claim: one that has got it from this process, or
// one with a directory for the volume. It fails if that is unknown.
func (c *Claims) usedByAnother(r *record, but types.UID) (bool, error) {
	if c.hasUser(r, but) {
		return true, nil
	}
	pods, err := os.ReadDir(c.cfg.PodsDir)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot see who uses the claim: %w", err)
	}
	for _, pod := range pods {
		if pod.Name() == string(but) {
			continue
		}
		has, err := c.hasVolume(pod.Name(), r)
		if has {
			return true, nil
		}
		if err != nil && pod.IsDir() {
			return false, fmt.Errorf("cannot see who uses the claim: %w", err)
		}
	}
	return false, nil
}

// settle does what is to be done about every claim with a directory, and reports whether that has succeeded.
func (c *Claims) settle() bool {
	done := true
	for _, k := range slices.SortedFunc(maps.Keys(c.records), key.compare) {
		err := c.settleOne(k, c.records[k])
		c.note(k, err)
		if err != nil {
			c.cfg.Logger.Warn("the change or the removal of a claim has failed; it is tried again",
				keyClaim, k, telemetry.KeyError, err)
			done = false
		}
	}
	return c.begin() && done
}

// note records why a claim cannot be changed or removed, for users; nil if it can.
func (c *Claims) note(k key, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.records[k]; r != nil {
		r.problem = err
	}
}

// settleOne does what is to be done about a claim.
func (c *Claims) settleOne(k key, r *record) error {
	r, err := c.follow(k, r)
	if err != nil {
		return err
	}
	if decide(r.isDeleted(), c.knowledgeOf(k, r), true) == mark {
		marked, now := *r, c.cfg.Clock.Now().UTC()
		marked.DeletedAt = &now
		if err := c.disk.save(k, &marked); err != nil {
			return err
		}
		c.set(k, &marked)
		r = &marked
	}
	c.enforce(k, r)
	if !r.isDeleted() {
		return nil
	}
	used, err := c.usedByAnother(r, "")
	if err != nil {
		return err
	}
	if decide(r.isDeleted(), absent, used) != remove {
		return nil
	}
	if err := c.giveUp(k, r); err != nil {
		return err
	}
	if err := c.release(r); err != nil {
		return err
	}
	if err := c.disk.forget(k, r.uid()); err != nil {
		return err
	}
	c.mu.Lock()
	delete(c.records, k)
	c.mu.Unlock()
	c.cfg.Logger.Info("a deleted claim is removed with its data", keyClaim, k)
	signal(c.sweep)
	c.tell(k)
	return nil
}

// follow returns the record with the changes of its document, for example of its size.
func (c *Claims) follow(k key, r *record) (*record, error) {
	if r.Owner != "" {
		return r, nil
	}
	document, err := c.documents.Claim(k.namespace, k.name)
	if err != nil || document.UID != r.uid() {
		return r, nil //nolint:nilerr // knowledgeOf looks at what it means that there is none
	}
	if checkUnchanged(r, document) != nil {
		return r, nil // a pod that begins to use it is told
	}
	fresh, err := c.renewed(k, r, &record{Claim: document})
	if err != nil {
		return nil, fmt.Errorf("write the change of the claim: %w", err)
	}
	return fresh, nil
}

// knowledgeOf returns what is known about the document of a claim or, for the claim of an ephemeral volume, about its
// pod, which is gone if it is not registered and has no directory for the volume.
func (c *Claims) knowledgeOf(k key, r *record) knowledge {
	if r.Owner != "" {
		c.mu.Lock()
		_, registered := c.pods[r.Owner]
		c.mu.Unlock()
		if registered || c.uses(r, r.Owner) {
			return present
		}
		return absent
	}
	document, err := c.documents.Claim(k.namespace, k.name)
	switch {
	case err == nil && document.UID == r.uid():
		return present
	case err == nil && c.documents.Unread() == "", apierrors.IsNotFound(err):
		return absent
	default:
		return unknown
	}
}

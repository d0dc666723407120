package statusmanager

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// delayed is the maximum delay of the watch. An object with an older version that arrives later is current, because the
// data of the API server were restored from a backup.
const delayed = time.Minute

// object is the last known state of a pod's object in the API server.
type object struct {
	namespace, name string
	uid             types.UID
	version         string
	generation      int64
	// deleting is true if the object is being deleted.
	deleting bool
	status   v1.PodStatus
	// at is the time at which this state became known.
	at time.Time
}

func objectOf(pod *v1.Pod) *object {
	return &object{
		namespace: pod.Namespace, name: pod.Name, uid: pod.UID, version: pod.ResourceVersion, generation: pod.Generation,
		deleting: pod.DeletionTimestamp != nil, status: pod.Status,
	}
}

// observe processes an observed object. The watch and the answers to requests arrive in any order, so an older version
// is ignored.
func (r *record) observe(observed *object, now time.Time) {
	observed.at = now
	known := r.object
	if known != nil && known.uid == observed.uid && now.Sub(known.at) < delayed {
		if order, err := resourceversion.CompareResourceVersion(observed.version, known.version); err == nil && order <= 0 {
			known.deleting = known.deleting || observed.deleting
			return
		}
	}
	r.object = observed
	if observed.uid == r.gone {
		return
	}
	if known == nil || known.uid != observed.uid {
		r.failures, r.until, r.gone = 0, time.Time{}, ""
	}
}

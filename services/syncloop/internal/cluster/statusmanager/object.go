package statusmanager

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// delayed is how long after it was made a change may reach this process by way of a watch. What comes later and is
// older by its version is so since the API server's data were restored from a backup.
const delayed = time.Minute

// object is what is known of a pod's object in the API server.
type object struct {
	namespace, name string
	uid             types.UID
	version         string
	generation      int64
	// deleting is true when somebody wants it deleted.
	deleting bool
	status   v1.PodStatus
	// at is when this became known; of the answer to a request, when that came.
	at time.Time
}

func objectOf(pod *v1.Pod) *object {
	return &object{
		namespace: pod.Namespace, name: pod.Name, uid: pod.UID, version: pod.ResourceVersion, generation: pod.Generation,
		deleting: pod.DeletionTimestamp != nil, status: pod.Status,
	}
}

// know takes in an object that was heard of in no order with the answers to requests: an older one changes nothing.
func (r *record) know(heard *object, now time.Time) {
	heard.at = now
	known := r.object
	if known != nil && known.uid == heard.uid && now.Sub(known.at) < delayed {
		if order, err := resourceversion.CompareResourceVersion(heard.version, known.version); err == nil && order <= 0 {
			known.deleting = known.deleting || heard.deleting
			return
		}
	}
	r.object = heard
	if heard.uid == r.gone {
		return
	}
	if known == nil || known.uid != heard.uid {
		r.failures, r.until, r.gone = 0, time.Time{}, ""
	}
}

package claims

import (
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"
)

// TestARefusedSecretIsPolledUntilItIsAnotherOne has the pods "u1" and "u2" with the same secret, which a driver
// refuses.
func TestARefusedSecretIsPolledUntilItIsAnotherOne(t *testing.T) {
	login := key{kind: secretKind, namespace: "shop", name: "login"}
	secret := func(version string) *v1.Secret {
		return &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "login", ResourceVersion: version}}
	}
	gone := apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, "login")
	for _, test := range []struct {
		name string
		do   func(*Cluster)
		// answer is that of the next request; no object is gone. tells has the pods that it notifies.
		answer *v1.Secret
		tells  []types.UID
		// waits has the pods that wait afterwards.
		waits []types.UID
	}{
		{
			name: "the same", answer: secret("1"), waits: []types.UID{"u1"},
			do: func(c *Cluster) { c.Refused("u1", secret("1")) },
		},
		{
			name: "another", answer: secret("2"), tells: []types.UID{"u1", "u2"},
			do: func(c *Cluster) { c.Refused("u1", secret("1")) },
		},
		{
			name: "deleted", tells: []types.UID{"u1", "u2"}, waits: []types.UID{"u1"},
			do: func(c *Cluster) { c.Refused("u1", secret("1")) },
		},
		{
			name: "used in two versions", answer: secret("2"), tells: []types.UID{"u1", "u2"},
			do: func(c *Cluster) { c.Refused("u1", secret("1")); c.Refused("u2", secret("2")) },
		},
		{
			name: "accepted for one", answer: secret("1"), waits: []types.UID{"u2"},
			do: func(c *Cluster) {
				c.Refused("u1", secret("1"))
				c.Refused("u2", secret("1"))
				c.Accepted("u1", "shop", "login")
			},
		},
		{name: "accepted", do: func(c *Cluster) { c.Refused("u1", secret("1")); c.Accepted("u1", "shop", "login") }},
		{name: "of no pod of the node", do: func(c *Cluster) { c.Refused("u3", secret("1")) }},
		{name: "of a pod that is gone", do: func(c *Cluster) {
			c.Refused("u1", secret("1"))
			c.Forget("u1")
			c.Forget("u2")
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := NewCluster(Config{NodeName: "n1", Clock: testingclock.NewFakeClock(time.Unix(1_000_000, 0))})
			for _, uid := range []types.UID{"u1", "u2"} {
				pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: string(uid), UID: uid}}
				pod.Spec.Volumes = []v1.Volume{{VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{
					Driver: "d", NodePublishSecretRef: &v1.LocalObjectReference{Name: "login"},
				}}}}
				c.Use(pod)
			}
			test.do(c)
			h := c.held[login]
			if polled := test.answer != nil || len(test.tells) > 0; (h != nil) != polled {
				t.Fatalf("held: %+v, want that it is polled: %t", h, polled)
			}
			if h == nil {
				if c.waiting != 0 {
					t.Errorf("%d objects are waited for, want 0", c.waiting)
				}
				return
			}
			object, err := runtime.Object(test.answer), error(nil)
			if test.answer == nil {
				object, err = nil, gone
			}
			if told := c.note(login, h, object, err); !slices.Equal(sorted(told), test.tells) {
				t.Errorf("%v are told, want %v", told, test.tells)
			}
			var waits []types.UID
			if h := c.held[login]; h != nil {
				for uid := range h.waiters {
					waits = append(waits, uid)
				}
			}
			if !slices.Equal(sorted(waits), test.waits) {
				t.Errorf("%v wait, want %v", waits, test.waits)
			}
		})
	}
}

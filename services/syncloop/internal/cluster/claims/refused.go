package claims

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// anotherVersion is the version of a secret of which pods have used different versions: no answer equals it.
const anotherVersion = "another"

// Refused implements Source. Only the version of the secret is kept.
func (c *Cluster) Refused(pod types.UID, secret *v1.Secret) {
	k := key{kind: secretKind, namespace: secret.Namespace, name: secret.Name}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.uses(pod, k) {
		return
	}
	h := c.held[k]
	switch {
	case h == nil:
		h = newHeld()
		close(h.answered)
		h.known, h.version = true, versionOf(secret)
		c.held[k] = h
	case h.version != versionOf(secret):
		h.version = anotherVersion
	}
	c.wait(k, h, pod)
}

// Accepted implements Source.
func (c *Cluster) Accepted(pod types.UID, namespace, name string) {
	k := key{kind: secretKind, namespace: namespace, name: name}
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.held[k]; h != nil {
		c.unwait(h, pod)
		if len(h.waiters) == 0 {
			delete(c.held, k)
		}
	}
}

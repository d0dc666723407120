package site

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/quartet-node/quartet/test/cluster"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/freeport"
	"github.com/quartet-node/quartet/test/nameserver"
	"github.com/quartet-node/quartet/test/sitenodes"
)

// few is the number of nodes for what does not depend on it.
const few = 5

// TestAStandbyServesTheSite: the standby of a configmux takes over when that is killed, also while the line to the API
// server is cut: then a node that restarts gets the pods of the checkpoint. No node loses a pod, and all nodes do what
// has changed when the line is back.
func TestAStandbyServesTheSite(t *testing.T) {
	s := newSite(t)
	s.populate(few, s.configmux.Address)
	must(t, s.configmux.Start())
	eventually.That(t, "configmux serves", func() bool { return s.configmux.Serving(t.Context()) })
	second, err := s.configmux.Standby()
	must(t, err)
	s.closes(second)
	must(t, second.Start())
	eventually.That(t, "the second instance is on standby", func() bool {
		log, err := os.ReadFile(second.Log)
		return err == nil && strings.Contains(string(log), "on standby")
	})
	s.startNodes()
	s.haveAll()
	s.hasCheckpoints()

	s.uplink.Refuse(t)
	must(t, s.configmux.Kill())
	eventually.That(t, "the standby serves", func() bool { return second.Serving(t.Context()) })
	must(t, s.nodes[0].Stop())
	must(t, s.nodes[0].Start())
	s.haveKept()
	s.uplink.Accept(t)
	s.change()
	s.haveAll()
}

// TestASiteHasTwoAddresses: when one of two instances with the same name is killed, the nodes get their pods from the
// other, and from the first when that is back and the other is killed. No node stops a pod that was not deleted.
func TestASiteHasTwoAddresses(t *testing.T) {
	s := newSite(t)
	port, err := freeport.Find()
	must(t, err)
	var instances []*sitenodes.Configmux
	ips := []string{"127.0.0.2", "127.0.0.3"}
	for _, ip := range ips {
		m, err := sitenodes.NewConfigmuxAt(
			fmt.Sprintf("%s:%d", ip, port), s.cluster, cluster.Require(t), t.TempDir(), s.uplink.URL(),
		)
		must(t, err)
		s.closes(m)
		must(t, m.Start())
		eventually.That(t, "configmux serves", func() bool { return m.Serving(t.Context()) })
		instances = append(instances, m)
	}
	resolver := nameserver.Start(t, sitenodes.Name+".", ips...)
	s.populate(few, fmt.Sprintf("dns://%s/%s:%d", resolver, sitenodes.Name, port))
	s.startNodes()
	s.haveAll()

	must(t, instances[0].Kill())
	s.change()
	s.haveAll()

	must(t, instances[0].Start())
	eventually.That(t, "configmux serves again", func() bool { return instances[0].Serving(t.Context()) })
	must(t, instances[1].Kill())
	s.create(s.nodes[0].Name, s.nodes[0].Name+"-pod-new")
	s.haveAll()
}

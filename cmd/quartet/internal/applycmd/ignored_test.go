package applycmd

import (
	"strings"
	"testing"
)

func TestAnnotationsOfTheAgentAreIgnoredAndReported(t *testing.T) {
	n := newNode(t)
	noted := strings.Replace(
		manifest("a", "i:1"),
		"name: a",
		"name: a, annotations: {kubernetes.io/config.seen: x, kubernetes.io/config.hash: x, mine: kept}",
		1,
	)
	const warning = "standard input: pod/a: metadata.annotations[kubernetes.io/config.hash]: only the node's agent sets this annotation: it is ignored\n" +
		"standard input: pod/a: metadata.annotations[kubernetes.io/config.seen]: only the node's agent sets this annotation: it is ignored\n"
	n.expect(noted, []string{"apply", "-f", "-"}, "pod/a-node created\n", warning, "")
	n.expect(
		strings.Replace(noted, "config.seen: x", "config.seen: later", 1),
		[]string{"apply", "-f", "-"},
		"pod/a-node unchanged\n",
		warning,
		"",
	)
}

func TestRefusedPrivilegesOfAPodAreReportedByField(t *testing.T) {
	n := newNode(t, "--host-pid-sources=file", "--privileged-sources=")
	greedy := strings.Replace(manifest("a", "i:1"), "spec: {", "spec: {hostNetwork: true, hostPID: true, ", 1)
	n.expect(greedy, []string{"apply", "-f", "-"}, "", "standard input: pod/a: it is not valid:\n"+
		`    spec.hostPID  Forbidden: a pod of the source "local" must not see the machine's processes: leave the field out, or name "local" in --host-pid-sources of configmux and syncloop`+"\n",
		"1 of 1 could not be applied: see above")
}

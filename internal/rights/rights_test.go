package rights

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/channelz/grpc_channelz_v1"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	debugv1 "github.com/quartet-node/quartet/gen/quartet/debug/v1"
	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
)

// served returns the full names of the methods that a process serves, besides its health.
func served() []string {
	var all []string
	for _, service := range []grpc.ServiceDesc{
		configv1.ConfigService_ServiceDesc, lifecyclev1.LifecycleService_ServiceDesc,
		enginev1.EngineService_ServiceDesc, nodev1.NodeService_ServiceDesc, debugv1.DebugService_ServiceDesc,
		grpc_reflection_v1.ServerReflection_ServiceDesc, grpc_channelz_v1.Channelz_ServiceDesc,
	} {
		for _, method := range service.Methods {
			all = append(all, "/"+service.ServiceName+"/"+method.MethodName)
		}
		for _, watch := range service.Streams {
			all = append(all, "/"+service.ServiceName+"/"+watch.StreamName)
		}
	}
	slices.Sort(all)
	return all
}

// TestEveryMethodHasARole: a new RPC does not compile into the services without a decision about its callers.
func TestEveryMethodHasARole(t *testing.T) {
	got, want := slices.Sorted(maps.Keys(methods)), served()
	for _, method := range want {
		if !slices.Contains(got, method) {
			t.Errorf("%s has no role: add it to the table and to docs/security.md", method)
		}
	}
	for _, method := range got {
		if !slices.Contains(want, method) {
			t.Errorf("%s has a role, and no service has it", method)
		}
	}
	for method, role := range methods {
		if !slices.Contains(Roles(), role) {
			t.Errorf("%s needs the role %q, which does not exist", method, role)
		}
	}
	if got := Needed("/quartet.engine.v1.EngineService/NotYetThere"); got != Admin {
		t.Errorf("an unknown method needs the role %q, want %q", got, Admin)
	}
	if got := Needed("/" + grpc_health_v1.Health_ServiceDesc.ServiceName + "/Check"); got != "" {
		t.Errorf("a health check needs the role %q, want none", got)
	}
}

// TestTheTableOfTheDocumentsIsThatOfTheCode: docs/security.md names each method with its role once, in rows such as
// "| `EngineService` | `EvictPod`, `ShutDownPods` | evict | ...".
func TestTheTableOfTheDocumentsIsThatOfTheCode(t *testing.T) {
	text, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| `(\\w+)` \\| ([^|]+) \\| `(\\w+)` \\|")
	name := regexp.MustCompile("`(\\w+)`")
	documented := map[string]Role{}
	for _, cells := range row.FindAllStringSubmatch(string(text), -1) {
		for _, method := range name.FindAllStringSubmatch(cells[2], -1) {
			key := cells[1] + "/" + method[1]
			if _, twice := documented[key]; twice {
				t.Errorf("%s is in two rows", key)
			}
			documented[key] = Role(cells[3])
		}
	}
	for method, role := range methods {
		key := method[strings.LastIndexByte(method, '.')+1:]
		if got := documented[key]; got != role {
			t.Errorf("docs/security.md gives %s the role %q, the code %q", key, got, role)
		}
		delete(documented, key)
	}
	for key := range documented {
		t.Errorf("docs/security.md has %s, and no service has it", key)
	}
	for _, role := range Roles() {
		if !regexp.MustCompile("(?m)^\\| `" + string(role) + "` \\| `--").Match(text) {
			t.Errorf("docs/security.md has no row with the flag of the role %q", role)
		}
	}
}

func TestAUserHasTheRolesThatNameIt(t *testing.T) {
	const own, allowed, observer, evictor, stranger = 10, 11, 12, 13, 14
	users := Users{Observe: {observer}, Evict: {evictor}}.With([]int{allowed}, Observe, Apply, Evict, Admin)
	if got, want := users.All(), []int{allowed, observer, evictor}; !slices.Equal(got, want) {
		t.Errorf("%v may connect, want %v", got, want)
	}
	for uid, want := range map[int][]Role{
		0:        Roles(),
		own:      Roles(),
		allowed:  {Observe, Apply, Evict, Admin},
		observer: {Observe},
		evictor:  {Observe, Evict},
		stranger: nil,
	} {
		var got []Role
		for _, role := range Roles() {
			if users.Have(uid, own, role) {
				got = append(got, role)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("user %d has the roles %q, want %q", uid, got, want)
		}
	}
	if (Users{}).Have(stranger, own, Observe) || !(Users{}).Have(0, own, Admin) {
		t.Error("without users only root and the own user have roles")
	}
}

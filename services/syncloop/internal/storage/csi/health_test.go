package csi_test

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

const canReportHealth = csispec.NodeServiceCapability_RPC_GET_VOLUME_HEALTH

// ill returns a condition in a driver's answer.
func ill(
	status csispec.VolumeHealthErrorType, reason, message string,
) *csispec.VolumeHealth_VolumeHealthEntry {
	return &csispec.VolumeHealth_VolumeHealthEntry{Status: status, Reason: reason, Message: message}
}

func TestADriverReportsTheHealthOfItsVolumes(t *testing.T) {
	r := newRig(t, canStage, canReportHealth)
	one := r.request(newPod("u1"), newPV("pv-1", "vol-1"))
	if _, err := r.plugin.Health(t.Context(), one.Dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("before: %v", err)
	}
	r.mount(one)
	if got, err := r.plugin.Health(t.Context(), one.Dir); err != nil || len(got) != 0 {
		t.Errorf("a healthy volume has %v, %v", got, err)
	}
	r.driver.Ail("vol-1", ill(csispec.VolumeHealthErrorType_DEGRADED, "DiskSlow", "a disk is slow"),
		ill(csispec.VolumeHealthErrorType_INACCESSIBLE, "", "\x1bgone"), ill(csispec.VolumeHealthErrorType_DATA_LOSS, "it is lost", ""))
	got, err := r.plugin.Health(t.Context(), one.Dir)
	want := []v1.VolumeHealthCondition{
		{Status: v1.VolumeHealthDegraded, Reason: "DiskSlow", Message: "a disk is slow"},
		{Status: v1.VolumeHealthInaccessible, Reason: "Inaccessible", Message: "�gone"},
		{Status: v1.VolumeHealthDataLoss, Reason: "DataLoss", Message: "it is lost"},
	}
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("reported %v, %v; want %v", got, err, want)
	}
	asked := last[*csispec.NodeGetVolumeHealthRequest](r, "NodeGetVolumeHealth")
	if asked.GetVolumePublishPath() != filepath.Join(one.Dir, "mount") || !strings.HasSuffix(asked.GetStagingTargetPath(), "/globalmount") {
		t.Errorf("asked %v", asked)
	}
	r.unmount(one.Dir)
	r.ends()
	without := newRig(t)
	without.mount(without.request(newPod("u1"), newPV("pv-1", "vol-1")))
	if _, err := without.plugin.Health(t.Context(), without.dir("u1", "pv-1")); !errors.Is(err, volumes.ErrNotExamined) {
		t.Errorf("a driver that reports no health: %v", err)
	}
}

// TestAnAnswerAboutHealthFitsTheStatusOfAPod has an answer that the API server would refuse in the status of a pod.
func TestAnAnswerAboutHealthFitsTheStatusOfAPod(t *testing.T) {
	r := newRig(t, canStage, canReportHealth)
	one := r.request(newPod("u1"), newPV("pv-1", "vol-1"))
	r.mount(one)
	entries := []*csispec.VolumeHealth_VolumeHealthEntry{
		ill(99, "Later", ""), nil, ill(csispec.VolumeHealthErrorType_UNKNOWN_VOLUME_HEALTH_TYPE, "Unknown", ""),
		ill(csispec.VolumeHealthErrorType_DEGRADED, strings.Repeat("é", 1000), strings.Repeat("\x1b", 10000)),
	}
	for i := range 40 {
		entries = append(entries, ill(csispec.VolumeHealthErrorType_DEGRADED, fmt.Sprint("Reason", i/2), fmt.Sprint(i)))
	}
	r.driver.Ail("vol-1", entries...)
	got, err := r.plugin.Health(t.Context(), one.Dir)
	if err != nil || len(got) != 16 || got[0].Reason != "Degraded" || len(got[0].Message) > 1024 ||
		got[1].Reason != "Reason0" || got[2].Reason != "Reason1" || got[1].Message != "0" {
		t.Errorf("reported %d: %v, %v", len(got), got, err)
	}
	r.unmount(one.Dir)
	r.ends()
}

// The console shows the health of the gateway, which needs no token.
const answer = await fetch("/readyz");
document.getElementById("console").textContent = `The gateway is ${(await answer.text()).trim()}.`;

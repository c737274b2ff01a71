// Starts the page: the parts are made once, and a session is opened.
import { tabs } from "./tabs.js";

tabs(document.querySelector('[role="tablist"]'));
